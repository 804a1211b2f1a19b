"""The terms of an experiment: what is valid, how they travel, and what their hash means."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coinflower.accounting.analyses.baselines import OnlyLocalSampling, WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.mechanism import Round
from coinflower.protocol.modes import PRIVATE_MODES, Mode, parse_mode
from coinflower.protocol.terms import Terms
from coinflower.protocol.unit import Unit
from tests.support.builders import terms_fields

# Fields that are not written where they have these values.
UNWRITTEN: dict[str, Any] = {
    "cap": math.inf,
    "schema": None,
    "unit": Unit.RECORD,
    "clipping": "flat",
    "task": "classification",
    "task_options": {},
    "row_shape": None,
    "model_options": {},
    "pretrained": None,
    "trained_parts": (),
    "lora_rank": 0,
    "threshold": None,
    "colluders": None,
    "ring_bits": None,
    "notaries": (),
    "query": None,
}
MASKED: dict[str, Any] = {
    "mode": Mode.MASKED,
    "threshold": 5,
    "colluders": 1,
    "ring_bits": 32,
    "notaries": ("a" * 64,),
}
PLAIN = terms_fields(q=0.1, rounds=20, learning_rate=0.5, momentum=0.9, **UNWRITTEN)
PRIVATE = list(PRIVATE_MODES)


def make(**changes: Any) -> Terms:
    return Terms(**{**PLAIN, **changes})


def unit(*, exclude_zero: bool = True) -> st.SearchStrategy[float]:
    return st.floats(0, 1, exclude_min=exclude_zero)


@st.composite
def any_terms(draw: st.DrawFn) -> Terms:
    mode = draw(st.sampled_from(Mode))
    rounds = draw(st.integers(1, 1_000_000))
    return Terms(
        experiment=draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)),
        p=1 if mode is Mode.LOCAL_ONLY else draw(unit()),
        q=draw(unit()),
        clip_norm=draw(st.floats(1e-12, 1e12) if mode.is_private else st.just(math.inf)),
        cap=draw(st.just(math.inf) | st.floats(1, 1e12)) if mode.is_private else math.inf,
        noise_multiplier=draw(st.floats(1e-6, 1e6)) if mode.is_private else 0,
        rounds=rounds,
        rounds_per_invitation=draw(st.integers(1, rounds)),
        model=draw(st.text(min_size=1, max_size=50)),
        classes=draw(st.integers(2, 100_000)),
        learning_rate=draw(st.floats(0, exclude_min=True, allow_infinity=False)),
        momentum=draw(st.floats(0, 1, exclude_max=True)),
        **({**MASKED, "mode": mode} if mode.masks_sums else {"mode": mode}),
    )


@given(any_terms())
def test_terms_survive_the_wire_with_their_hash(terms: Terms) -> None:
    back = Terms.from_json(terms.to_json())
    assert back == terms
    assert back.hash == terms.hash
    assert back.to_json() == terms.to_json()


@given(any_terms())
def test_terms_survive_plain_fields(terms: Terms) -> None:
    assert Terms.from_fields(terms.to_fields()) == terms


@given(any_terms())
def test_canonical_json_has_no_numbers_that_json_does_not_know(terms: Terms) -> None:
    json.loads(terms.to_json(), parse_constant=pytest.fail)


def test_the_hash_is_the_same_today_and_tomorrow() -> None:
    assert (
        make().to_json() == '{"classes":10,"clip_norm":1.0,"experiment":"trial",'
        '"learning_rate":0.5,"mode":"trusted","model":"digits","momentum":0.9,'
        '"noise_multiplier":1.5,"p":0.5,"q":0.1,"rounds":20,"rounds_per_invitation":4,'
        '"scheme":"certified"}'
    )
    assert make().hash == "6690689ddc8a4dfd6f2a534ccb69dfa1c768a64cd3bfcba5e650b89cd51994dc"
    # Ledgers hold these hashes as well: whole numbers, and no clipping at all.
    whole = make(mode=Mode.LOCAL_ONLY, p=1, q=1, clip_norm=2, noise_multiplier=3, momentum=0)
    assert whole.hash == "49b572a02541e94214bb766d3d00d87d358656ca9d97b4d948595a92827da8a0"
    bare = make(mode=Mode.NONE, clip_norm=math.inf, noise_multiplier=0, learning_rate=1e-300)
    assert bare.hash == "d2e98d284156070fdc9bc878fedb783463373df866d92e3fa14936cc486e2b67"


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("experiment", "trial-2"),
        ("mode", Mode.UNTRUSTED),
        ("p", 0.5000000000000001),
        ("q", 0.2),
        ("clip_norm", 2.0),
        ("cap", 2.0),
        ("noise_multiplier", 1.4),
        ("rounds", 21),
        ("rounds_per_invitation", 5),
        ("model", "paper-cnn"),
        ("classes", 11),
        ("learning_rate", 0.25),
        ("momentum", 0.0),
        ("schema", "b" * 64),
        ("unit", Unit.PERSON),
        ("clipping", "automatic"),
        ("task", "multilabel"),
        ("task_options", {"weights": [1.0, 2.0]}),
        ("row_shape", (3, 32, 32)),
        ("model_options", {"widths": [64, 32]}),
        ("pretrained", "b" * 64),
        ("trained_parts", ("head.",)),
        ("lora_rank", 4),
    ],
)
def test_the_hash_changes_with_every_field(field: str, other: object) -> None:
    changed = make(**{field: other})
    assert changed.hash != make().hash
    assert changed.ledger_key != make().ledger_key
    assert Terms.from_json(changed.to_json()) == changed


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("threshold", 6),
        ("colluders", 2),
        ("ring_bits", 64),
        ("notaries", ("b" * 64,)),
        ("notaries", ("a" * 64, "b" * 64)),
    ],
)
def test_the_hash_changes_with_every_field_of_mode_masked(field: str, other: object) -> None:
    changed, before = make(**{**MASKED, field: other}), make(**MASKED)
    assert changed.hash != before.hash
    assert Terms.from_json(changed.to_json()) == changed


@pytest.mark.parametrize("field", ["threshold", "colluders", "ring_bits", "notaries"])
def test_mode_masked_needs_what_no_other_mode_takes(field: str) -> None:
    with pytest.raises(ValueError, match=f"mode masked needs {field}"):
        make(**{**MASKED, field: UNWRITTEN[field]})
    with pytest.raises(ValueError, match=f"{field} goes with mode masked, not with mode trusted"):
        make(**{field: MASKED[field]})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"threshold": 1}, "threshold = 1 must be at least 2"),
        ({"colluders": 0}, "colluders = 0 must be at least 1"),
        ({"threshold": 3, "colluders": 3}, "threshold = 3 must be above colluders = 3"),
        ({"ring_bits": 48}, "ring_bits"),
        ({"notaries": ("a" * 63,)}, "notaries"),
        ({"notaries": ("a" * 64, "a" * 64)}, "at most 8 different keys"),
        ({"notaries": tuple(f"{n:064x}" for n in range(9))}, "at most 8 different keys"),
    ],
)
def test_terms_of_mode_masked_that_protect_nobody_are_refused(
    changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        make(**{**MASKED, **changes})


def test_honest_shares_are_the_threshold_without_the_colluders() -> None:
    assert make(**{**MASKED, "threshold": 8, "colluders": 3}).honest_shares == 5
    assert make().honest_shares == 1


def test_every_field_is_among_those_that_change_the_hash() -> None:
    assert {field.name for field in dataclasses.fields(Terms)} == PLAIN.keys()


@pytest.mark.parametrize("field", UNWRITTEN)
def test_terms_say_nothing_of_what_they_do_not_ask_for(field: str) -> None:
    assert field not in make().to_fields()


def test_equal_terms_have_equal_hashes() -> None:
    assert make(p=1, clip_norm=2, momentum=0).hash == make(p=1.0, clip_norm=2.0, momentum=-0.0).hash


def test_terms_without_a_schema_say_nothing_of_schemas() -> None:
    assert "schema" not in make().to_fields()
    named = make(schema="a" * 64)
    assert named.to_fields()["schema"] == "a" * 64
    assert Terms.from_json(named.to_json()) == named
    for wrong in ("a" * 63, "A" * 64, "", 7):
        with pytest.raises(ValueError, match="schema"):
            make(schema=wrong)


def test_terms_without_a_cap_say_nothing_of_caps() -> None:
    assert "cap" not in make().to_json()
    assert make(cap=2).to_fields()["cap"] == 2.0
    assert make(cap=2).hash == make(cap=2.0).hash
    assert Terms.from_json(make().to_json()).cap == math.inf


@pytest.mark.parametrize("mode", PRIVATE)
def test_every_private_mode_takes_a_cap_and_is_charged_with_it(mode: Mode) -> None:
    masked = MASKED if mode.masks_sums else {}
    terms = make(**{**masked, "mode": mode}, p=mode.usual_p, clip_norm=0.5, cap=3)
    assert terms.cap_norm == 1.5
    cost = terms.round_cost(70)
    assert cost is not None
    assert type(cost) is mode.scheme
    assert cost.round == Round(mode.usual_p, 0.1, 70, 1.5, cap=3.0)


def test_without_privacy_a_cap_is_kept_where_it_has_a_meaning() -> None:
    bare: dict[str, Any] = {"mode": Mode.NONE, "noise_multiplier": 0}
    assert make(**bare, cap=2).cap_norm == 2.0
    assert make(**bare, clip_norm=math.inf).cap_norm == math.inf
    with pytest.raises(ValueError, match="cap = 2 counts clip norms, so the clip norm must be"):
        make(**bare, clip_norm=math.inf, cap=2)


def test_the_ledger_key_holds_the_whole_hash() -> None:
    assert make().ledger_key == f"trial#{make().hash}"


def test_the_scheme_that_charges_belongs_to_the_mode() -> None:
    size = 70
    for mode in (Mode.TRUSTED, Mode.UNTRUSTED):
        assert make(mode=mode).round_cost(size) == Certified(
            Round(p=0.5, q=0.1, d=size, noise_multiplier=1.5)
        )
    assert isinstance(make(mode=Mode.QUIET).round_cost(size), WeakClientSampling)
    assert isinstance(make(mode=Mode.LOCAL_ONLY, p=1.0).round_cost(size), OnlyLocalSampling)
    assert make(mode=Mode.NONE, noise_multiplier=0).round_cost(size) is None


def test_the_noise_is_in_units_of_the_clip_norm() -> None:
    assert make(clip_norm=4.0).noise_std == 6.0
    assert make(mode=Mode.NONE, noise_multiplier=0, clip_norm=math.inf).noise_std == 0.0


@pytest.mark.parametrize(
    ("mode", "client", "server", "always"),
    [
        (Mode.TRUSTED, False, True, False),
        (Mode.UNTRUSTED, True, False, True),
        (Mode.QUIET, True, False, False),
        (Mode.LOCAL_ONLY, False, True, False),
        (Mode.NONE, False, False, False),
    ],
)
def test_every_mode_says_who_adds_noise(
    mode: Mode, client: bool, server: bool, always: bool
) -> None:
    assert mode.client_adds_noise is client
    assert mode.server_adds_noise is server
    assert mode.answers_always is always
    assert mode.is_private is (client or server)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"experiment": ""}, "experiment = '' must be 1 to 64 letters"),
        ({"experiment": "a b"}, "experiment = 'a b' must be 1 to 64 letters"),
        ({"experiment": "../x"}, "must be 1 to 64 letters"),
        ({"experiment": "x" * 65}, "must be 1 to 64 letters"),
        ({"experiment": "é"}, "must be 1 to 64 letters"),
        ({"experiment": "x\n"}, "must be 1 to 64 letters"),
        ({"experiment": 7}, "experiment = 7 must be a text"),
        ({"mode": "trusted"}, "mode = 'trusted' must be an instance of Mode"),
        ({"p": 0.0}, "p = 0.0 must be above 0"),
        ({"p": 1.1}, "p = 1.1 must be at most 1"),
        ({"p": math.nan}, "p = nan must be at most 1"),
        ({"q": -0.1}, "q = -0.1 must be above 0"),
        ({"clip_norm": 0.0}, "clip_norm = 0.0 must be a finite number above 0"),
        ({"clip_norm": math.inf}, "clip_norm = inf must be a finite number above 0"),
        ({"clip_norm": math.nan}, "clip_norm = nan must be a finite number above 0"),
        ({"clip_norm": 1e-13}, "clip_norm = 1e-13 must lie in 1e-12 to 1e\\+12"),
        ({"cap": 0.999}, "cap = 0.999 must be at least 1"),
        ({"cap": -2.0}, "cap = -2.0 must be at least 1"),
        ({"cap": -math.inf}, "cap = -inf must be at least 1"),
        ({"cap": math.nan}, "cap = nan must be at least 1"),
        ({"cap": 1e13}, "cap = 10000000000000.0 must lie in 1 to 1e\\+12"),
        ({"noise_multiplier": 0.0}, "noise_multiplier = 0.0 must be a finite number above 0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier = -1.0 must be"),
        ({"noise_multiplier": 1e-7}, "noise_multiplier = 1e-07 must lie in 1e-06 to 1e\\+06"),
        ({"noise_multiplier": 1e7}, "noise_multiplier = 10000000.0 must lie in"),
        ({"rounds": 0}, "rounds = 0 must be at least 1"),
        ({"rounds": 2.5}, "rounds = 2.5 must be an integer"),
        ({"rounds": 1_000_001}, "rounds = 1000001 must be at most 1000000"),
        ({"rounds_per_invitation": 0}, "rounds_per_invitation = 0 must be"),
        ({"rounds_per_invitation": 21}, "rounds_per_invitation = 21 is more than the 20 rounds"),
        ({"classes": 1}, "classes = 1 must be at least 2"),
        ({"classes": 100_001}, "classes = 100001 must be at most 100000"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0 must be above 0"),
        ({"learning_rate": math.inf}, "learning_rate = inf must be"),
        ({"momentum": 1.0}, "momentum = 1.0 must be below 1"),
        ({"learning_rate": None}, "momentum = 0.9 goes with a learning rate"),
        ({"momentum": math.nan}, "momentum = nan must be below 1"),
        ({"model": ""}, "model = '' must not be empty"),
        ({"mode": Mode.LOCAL_ONLY}, "p = 0.5 must be 1 in mode local-only"),
        ({"mode": Mode.NONE}, "noise_multiplier = 1.5 must be 0 in mode none"),
        (
            {"mode": Mode.NONE, "noise_multiplier": 0, "clip_norm": 0},
            "clip_norm = 0.0 must be above 0",
        ),
        (
            {"mode": Mode.NONE, "noise_multiplier": math.nan},
            "noise_multiplier = nan must be 0 in mode none",
        ),
    ],
)
def test_what_is_out_of_range_is_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make(**changes)


@pytest.mark.parametrize("mode", PRIVATE)
def test_no_private_mode_goes_without_noise_or_clipping(mode: Mode) -> None:
    for weak in ({"noise_multiplier": 0.0}, {"clip_norm": math.inf}):
        with pytest.raises(ValueError, match="must be a finite number above 0"):
            make(mode=mode, p=1.0, **weak)


def test_automatic_clipping_needs_a_norm_to_clip_to() -> None:
    with pytest.raises(ValueError, match="clipping = 'automatic' needs a finite clip norm"):
        make(mode=Mode.NONE, noise_multiplier=0.0, clip_norm=math.inf, clipping="automatic")


def test_an_unknown_mode_is_told_which_there_are() -> None:
    with pytest.raises(ValueError, match="'secret' is unknown; choose one of trusted, covered"):
        parse_mode("secret")


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("experimnt", "experiment"),
        ("clipnorm", "clip_norm"),
        ("noise-multiplier", "noise_multiplier"),
        ("learningrate", "learning_rate"),
        ("round", "rounds"),
    ],
)
def test_a_misspelt_field_is_told_the_nearest_right_one(typo: str, meant: str) -> None:
    fields = make().to_fields()
    fields[typo] = fields.pop(meant)
    with pytest.raises(ValueError, match=f"unknown key '{typo}'; did you mean '{meant}'"):
        Terms.from_fields(fields)


def test_a_field_like_no_other_is_told_which_there_are() -> None:
    with pytest.raises(ValueError, match="unknown key 'zzz'; known are experiment, mode, p"):
        Terms.from_fields({**make().to_fields(), "zzz": 1})


def test_missing_fields_are_named_and_defaults_are_not_missing() -> None:
    fields = make().to_fields()
    del fields["momentum"], fields["rounds_per_invitation"], fields["scheme"]
    assert Terms.from_fields(fields) == make(momentum=0.0, rounds_per_invitation=1)
    del fields["p"], fields["classes"]
    with pytest.raises(ValueError, match="The terms lacks 'p', 'classes'"):
        Terms.from_fields(fields)


def test_another_scheme_than_the_modes_is_refused() -> None:
    fields = {**make().to_fields(), "scheme": "paper"}
    with pytest.raises(ValueError, match="scheme = 'paper' must be 'certified', the one of mode"):
        Terms.from_fields(fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("p", "0.5"),
        ("p", True),
        ("p", None),
        ("rounds", 20.0),
        ("rounds", True),
        ("experiment", 3),
        ("mode", ["trusted"]),
        ("model", {"a": 1}),
        ("clip_norm", "inf"),
        ("cap", "inf"),
        ("cap", "infinite"),
        ("cap", "2"),
        ("cap", True),
        ("cap", None),
        ("momentum", []),
    ],
)
def test_a_field_of_the_wrong_type_is_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} = "):
        Terms.from_fields({**make().to_fields(), field: value})


def test_terms_of_absurd_length_are_not_even_read() -> None:
    text = json.dumps({**make().to_fields(), "x" * 20_000: 1})
    with pytest.raises(ValueError, match="longer than 10000 characters"):
        Terms.from_json(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")) | json_values.map(json.dumps))
@example("[" * 9_000)
@example("1" * 9_000)
@example('{"p":' * 1_500)
@example("NaN")
@example("\ud800")
def test_whatever_comes_from_the_wire_only_a_value_error_comes_out(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Terms.from_json(text)


@given(
    field=st.sampled_from([*PLAIN, "scheme", "other"]),
    value=json_values | st.just(10**400) | st.just("infinite"),
)
@example(field="learning_rate", value=10**400)
@example(field="clip_norm", value=10**400)
@example(field="scheme", value=[])
def test_one_field_of_junk_is_a_value_error_or_valid_terms(field: str, value: object) -> None:
    text = json.dumps({**make().to_fields(), field: value})
    try:
        terms = Terms.from_json(text)
    except ValueError:
        return
    assert Terms.from_json(terms.to_json()) == terms


@given(st.dictionaries(st.text(), json_values))
@settings(max_examples=30)
def test_any_object_is_refused_as_terms_by_a_value_error(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="The terms"):
        Terms.from_fields(fields)
