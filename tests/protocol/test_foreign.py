"""Foreign text is one printable line, and tells where it begins and ends."""

import ast

from hypothesis import example, given
from hypothesis import strategies as st

from coinflower.protocol.foreign import printable, quoted

TEXTS = st.text(st.characters(codec=None, exclude_categories=()))


@given(TEXTS)
@example("\x1b[2J\x1b]0;owned\x07")
@example("fine\n2026-01-01 00:00:00,000 INFO Round 7 done")
@example("\x9b31m\u202egpj.exe\u2028\ud800")
def test_no_character_of_it_moves_or_colours_anything(text):
    assert printable(text).isprintable()
    assert quoted(text).isprintable()


@given(TEXTS)
def test_what_is_printable_stays_as_it_is(text):
    kept = "".join(one for one in text if one.isprintable())
    assert printable(kept) == kept


@given(st.text(max_size=100))
def test_a_quoted_text_can_be_read_back(text):
    assert ast.literal_eval(quoted(text)) == text


def test_a_long_text_is_cut_and_its_length_is_told():
    assert quoted("ab" * 300, most=4) == "'abab'… (600 characters)"
    assert printable("ab" * 300, 4) == "abab… (600 characters)"
    assert printable("abab", 4) == "abab"


def test_a_quoted_text_cannot_end_its_own_quotation():
    shown = quoted("no') INFO 'yes")
    assert ast.literal_eval(shown) == "no') INFO 'yes"
