import pytest

from coinflower.accounting.errors import UserError
from coinflower.cli.options.model import parse_options


def test_options_of_a_model_are_numbers_lists_flags_or_texts():
    texts = ["widths=64,32", "depth=2", "rate=0.5", "rates=1,0.5", "bias=true", "kind=gelu"]
    assert parse_options(texts) == {
        **{"widths": [64, 32], "depth": 2, "rate": 0.5, "rates": [1.0, 0.5]},
        **{"bias": True, "kind": "gelu"},
    }
    assert parse_options(None) == {}


@pytest.mark.parametrize("text", ["widths", "widths=", "=3", ""])
def test_an_option_without_key_or_value_is_refused(text):
    with pytest.raises(UserError, match="must be key=value"):
        parse_options([text])


def test_an_option_that_is_given_twice_is_refused():
    with pytest.raises(UserError, match="depth is given twice"):
        parse_options(["depth=1", "depth=2"])
