"""The policy of a data owner: its file, and what it refuses."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coinflower.accounting.ledger.entries import Budget
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import (
    BUILT_IN_MODELS,
    Policy,
    Refusal,
    RefusedError,
    Share,
    load_policy,
)
from coinflower.protocol.terms import Terms
from tests.support.builders import make_policy, make_terms, policy_fields

LIMITS: dict[str, Any] = {
    "ledger": "ward7.db",
    "declared_size": 100,
    "modes": ["trusted", "untrusted"],
    "largest_q": 0.1,
    "largest_cap": 3.0,
    "least_noise_multiplier": 1.5,
    "budget": {"epsilon": 3.0, "delta": 1e-5},
}
FILE = policy_fields(**LIMITS)


def terms(**changes: Any) -> Terms:
    return make_terms(**{"q": 0.1, "rounds": 20, "cap": 3.0, **changes})


def policy(**changes: Any) -> Policy:
    return make_policy(**{**LIMITS, **changes})


def written(folder: Path, **changes: Any) -> Path:
    """A policy file with the changes; None takes a key out."""
    table = {key: value for key, value in {**FILE, **changes}.items() if value is not None}
    path = folder / "policy.toml"
    path.write_text(tomli_w.dumps(table))
    return path


def test_terms_exactly_at_the_limits_are_allowed() -> None:
    policy().require(terms())
    policy().require(terms(mode=Mode.UNTRUSTED))


def test_stronger_terms_are_allowed() -> None:
    policy().require(terms(p=0.4, q=0.05, clip_norm=0.5, cap=1, noise_multiplier=2.0))


WEAKER = [
    ({"mode": Mode.QUIET}, Refusal.MODE),
    ({"mode": Mode.LOCAL_ONLY, "p": 1.0}, Refusal.MODE),
    ({"mode": Mode.NONE, "noise_multiplier": 0.0}, Refusal.MODE),
    ({"p": 0.5000001}, Refusal.PARTICIPATION),
    ({"q": 0.1000001}, Refusal.SAMPLING),
    ({"clip_norm": 1.0000001}, Refusal.CLIPPING),
    ({"cap": 3.0000001}, Refusal.CAP),
    ({"cap": math.inf}, Refusal.CAP),
    ({"noise_multiplier": 1.4999999}, Refusal.NOISE),
    ({"model": "paper-cnn-2"}, Refusal.MODEL),
    ({"model": "os:system"}, Refusal.MODEL),
    ({"rounds": 1_000_000, "rounds_per_invitation": 10_001}, Refusal.EXTENT),
    ({"classes": 10_001}, Refusal.EXTENT),
]


@pytest.mark.parametrize(("changes", "refusal"), WEAKER)
def test_anything_weaker_is_refused_with_its_reason(
    changes: dict[str, Any], refusal: Refusal
) -> None:
    with pytest.raises(RefusedError) as caught:
        policy().require(terms(**changes))
    assert caught.value.refusal is refusal


def test_without_privacy_p_and_q_still_bind_and_noise_does_not() -> None:
    open_minded = policy(modes=frozenset({Mode.NONE}))
    bare = {"mode": Mode.NONE, "noise_multiplier": 0.0, "clip_norm": math.inf, "cap": math.inf}
    open_minded.require(terms(**bare))
    with pytest.raises(RefusedError) as caught:
        open_minded.require(terms(**bare, p=0.6))
    assert caught.value.refusal is Refusal.PARTICIPATION


@pytest.mark.parametrize(
    ("field", "refusal"),
    [
        ("p", Refusal.PARTICIPATION),
        ("q", Refusal.SAMPLING),
        ("clip_norm", Refusal.CLIPPING),
        ("cap", Refusal.CAP),
        ("noise_multiplier", Refusal.NOISE),
        ("rounds", Refusal.EXTENT),
        ("rounds_per_invitation", Refusal.EXTENT),
        ("classes", Refusal.EXTENT),
    ],
)
def test_what_is_not_a_number_keeps_to_no_limit(field: str, refusal: Refusal) -> None:
    asked = terms()
    object.__setattr__(asked, field, math.nan)  # which no terms let in
    with pytest.raises(RefusedError) as caught:
        policy().require(asked)
    assert caught.value.refusal is refusal


@pytest.mark.parametrize("field", ["largest_p", "largest_q", "largest_clip_norm", "largest_cap"])
def test_a_limit_that_is_not_a_number_allows_nothing(field: str) -> None:
    ours = policy()
    object.__setattr__(ours, field, math.nan)
    with pytest.raises(RefusedError):
        ours.require(terms())


@pytest.mark.parametrize("field", ["p", "q", "clip_norm", "noise_multiplier", "learning_rate"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_terms_with_figures_that_are_none_are_no_terms(field: str, value: str) -> None:
    fields = {**terms().to_fields(), field: 0.123456789}
    text = json.dumps(fields).replace("0.123456789", value)
    with pytest.raises(ValueError, match=r"must|not a probability"):
        Terms.from_json(text)


@pytest.mark.parametrize("refusal", Refusal)
def test_what_is_told_to_the_server_is_a_sentence_without_figures(refusal: Refusal) -> None:
    assert re.fullmatch(r"[A-Z][^\d]*\.", refusal.value)


def test_the_figures_are_in_the_text_for_the_owner() -> None:
    with pytest.raises(RefusedError, match=r"noise multiplier = 1\.2 < 1\.5") as caught:
        policy().require(terms(noise_multiplier=1.2))
    assert "1.2" not in caught.value.refusal.value


def test_a_file_gives_the_policy_it_says(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert load_policy(path) == policy(ledger=tmp_path / "ward7.db", models=BUILT_IN_MODELS)


def test_all_that_is_optional_is_read(tmp_path: Path) -> None:
    share = {"clients": 4, "index": 3, "how": "dirichlet", "seed": 9, "alpha": 0.3}
    path = written(tmp_path, share=share, models=["mine:model"], insecure_seed=5)
    loaded = load_policy(path)
    assert loaded.share == Share(clients=4, index=3, how="dirichlet", seed=9, alpha=0.3)
    assert loaded.models == {"mine:model"}
    assert loaded.insecure_seed == 5


def test_relative_paths_start_at_the_policys_folder(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    loaded = load_policy(written(tmp_path, data="images", ledger="books/ward7.db"))
    assert loaded.data == str(tmp_path / "images")
    assert loaded.ledger == tmp_path / "books" / "ward7.db"


def test_absolute_paths_and_names_stay_as_they_are(tmp_path: Path) -> None:
    loaded = load_policy(written(tmp_path, data="mnist", ledger="/var/ledgers/ward7.db"))
    assert loaded.data == "mnist"
    assert loaded.ledger == Path("/var/ledgers/ward7.db")


def test_a_budget_of_zero_is_zero_and_not_no_limit(tmp_path: Path) -> None:
    loaded = load_policy(written(tmp_path, budget={"epsilon": 0, "delta": 1e-5}))
    assert loaded.budget == Budget(epsilon=0, delta=1e-5)


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("declared-size", "declared_size"),
        ("largest_clipnorm", "largest_clip_norm"),
        ("least_noise_multipler", "least_noise_multiplier"),
        ("mode", "modes"),
        ("largestp", "largest_p"),
    ],
)
def test_a_misspelt_key_is_told_the_nearest_right_one(
    tmp_path: Path, typo: str, meant: str
) -> None:
    path = written(tmp_path, **{meant: None, typo: FILE[meant]})
    with pytest.raises(ValueError, match=f"{path} has an unknown key '{typo}'.*'{meant}'"):
        load_policy(path)


@pytest.mark.parametrize(
    ("table", "content", "typo", "meant"),
    [
        ("budget", {"epsilon": 1.0, "detla": 1e-5}, "detla", "delta"),
        ("share", {"client": 3, "index": 1}, "client", "clients"),
    ],
)
def test_a_misspelt_key_in_a_table_is_told_where_it_is(
    tmp_path: Path, table: str, content: dict[str, Any], typo: str, meant: str
) -> None:
    path = written(tmp_path, **{table: content})
    with pytest.raises(ValueError, match=rf"\[{table}\], has an unknown key '{typo}'.*'{meant}'"):
        load_policy(path)


@pytest.mark.parametrize(
    "key",
    [
        "data_set",
        "data",
        "ledger",
        "declared_size",
        "modes",
        "largest_p",
        "largest_q",
        "largest_clip_norm",
        "least_noise_multiplier",
        "budget",
    ],
)
def test_no_limit_has_a_silent_default(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match=f"lacks '{key}'"):
        load_policy(written(tmp_path, **{key: None}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"declared_size": 0}, "declared_size = 0 must be at least 1"),
        ({"declared_size": 10.5}, "declared_size = 10.5 must be an integer"),
        ({"declared_size": True}, "declared_size = True must be an integer"),
        ({"largest_p": 1.5}, "largest_p = 1.5 must be at most 1"),
        ({"largest_p": True}, "largest_p = True must be a number"),
        ({"largest_q": "0.1"}, "largest_q = '0.1' must be a number"),
        ({"largest_q": math.nan}, "largest_q = nan must be at most 1"),
        ({"largest_clip_norm": 0}, "largest_clip_norm = 0 must be above 0"),
        ({"largest_clip_norm": math.nan}, "largest_clip_norm = nan must be above 0"),
        ({"largest_clip_norm": "big"}, "largest_clip_norm = 'big' must be a number"),
        ({"largest_cap": 0.5}, "largest_cap = 0.5 must be at least 1"),
        ({"largest_cap": math.nan}, "largest_cap = nan must be at least 1"),
        ({"largest_cap": True}, "largest_cap = True must be a number"),
        ({"largest_cap": "inf"}, "largest_cap = 'inf' must be a number"),
        ({"least_noise_multiplier": -1}, "least_noise_multiplier = -1 must be at least 0"),
        ({"least_noise_multiplier": math.nan}, "least_noise_multiplier = nan must be at least 0"),
        ({"most_rounds": 0}, "most_rounds = 0 must be at least 1"),
        ({"most_classes": math.nan}, "most_classes = nan must be an integer"),
        ({"most_parameters": 1.5}, "most_parameters = 1.5 must be an integer"),
        ({"most_experiments": True}, "most_experiments = True must be an integer"),
        ({"most_open_experiments": -1}, "most_open_experiments = -1 must be at least 1"),
        ({"pricing_seconds": math.nan}, "pricing_seconds = nan must be a finite number"),
        ({"pricing_seconds": math.inf}, "pricing_seconds = inf must be a finite number"),
        ({"modes": []}, "modes is empty; allow at least one of trusted"),
        ({"modes": ["trustd"]}, "modes.0 = 'trustd' must be 'trusted', 'covered'"),
        ({"modes": "trusted"}, "modes = 'trusted' must be a list"),
        ({"modes": [1]}, "modes.0 = 1 must be 'trusted', 'covered'"),
        ({"models": "digits"}, "models = 'digits' must be a list"),
        ({"models": []}, "models is empty"),
        ({"data_set": ""}, "data_set = '' must not be empty"),
        ({"data": 3}, "data = 3 must be a text"),
        ({"ledger": ""}, "ledger = '.' must be the path of a file"),
        ({"witness": ""}, "witness = '.' must be the path of a file"),
        ({"insecure_seed": False}, "insecure_seed = False must be an integer"),
        ({"insecure_seed": -1}, "insecure_seed = -1 must be at least 0"),
        ({"budget": 3.0}, r"\[budget\] must be a table"),
        ({"budget": {"epsilon": 1.0}}, r"\[budget\], lacks 'delta'"),
        ({"budget": {"epsilon": -1.0, "delta": 1e-5}}, "epsilon = -1.0 must be"),
        ({"budget": {"epsilon": math.inf, "delta": 1e-5}}, "epsilon = inf must be a finite"),
        ({"budget": {"epsilon": True, "delta": 1e-5}}, "budget.epsilon = True must be a number"),
        ({"budget": {"epsilon": 1.0, "delta": 0}}, "budget.delta = 0.0 must lie strictly between"),
        ({"budget": {"epsilon": 1.0, "delta": 1}}, "budget.delta = 1.0 must lie strictly between"),
        ({"share": {"clients": 3, "index": 3}}, "share.index = 3 must lie in 0 to 2"),
        ({"share": {"clients": 0, "index": 0}}, "share.clients = 0 must be"),
        ({"share": {"clients": "3", "index": 0}}, "share.clients = '3' must be an integer"),
        ({"share": {"clients": 3, "index": 0, "alpha": 0}}, "share.alpha = 0 must be"),
        ({"share": [1]}, r"\[share\] must be a table"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"The policy {path}.*{sentence}"):
        load_policy(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"There is no file {tmp_path}/no.toml"):
        load_policy(tmp_path / "no.toml")


def test_a_folder_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        load_policy(tmp_path)


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_file_holds_only_a_value_error_comes_out(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "junk.toml"
    path.write_bytes(junk)
    with pytest.raises(ValueError, match=r"junk\.toml"):
        load_policy(path)


@given(
    key=st.sampled_from(sorted(FILE)),
    value=st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(),
        st.text(max_size=5),
        st.lists(st.integers(0, 3) | st.text(max_size=3), max_size=3),
        st.dictionaries(st.text(max_size=5), st.integers(0, 3), max_size=2),
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_key_of_junk_is_a_value_error_or_a_policy_that_is_no_weaker(
    tmp_path: Path, key: str, value: object
) -> None:
    path = written(tmp_path, **{key: value})
    try:
        loaded = load_policy(path)
    except ValueError:
        return
    assert 0 < loaded.largest_p <= 1
    assert 0 < loaded.largest_q <= 1
    assert loaded.least_noise_multiplier >= 0
    assert loaded.modes <= set(Mode)
    assert math.isfinite(loaded.budget.epsilon)


def test_a_witness_lies_where_the_policy_says(tmp_path: Path) -> None:
    assert load_policy(written(tmp_path)).witness is None
    named = load_policy(written(tmp_path, witness="../other disk/ward7.witness"))
    assert named.witness == tmp_path / "../other disk/ward7.witness"
    with pytest.raises(ValueError, match="witness = True must be a text"):
        load_policy(written(tmp_path, witness=True))


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("rounds", "cap"), [(3, math.inf), (20_000, 2.5)])
def test_a_policy_made_for_terms_is_read_back_and_allows_them_and_nothing_weaker(
    tmp_path: Path, mode: Mode, rounds: int, cap: float
) -> None:
    agreed = make_terms(mode, rounds=rounds, rounds_per_invitation=rounds, cap=cap)
    made = Policy.for_terms(
        agreed,
        data_set='ward "7"',
        data="digits",
        ledger=Path("ledger.db"),
        declared_size=30,
        budget=Budget(epsilon=3, delta=1e-5),
        loaders=frozenset({"own.wards:rows"}),
        schema=Path("schema.toml"),
        share=Share(clients=3, index=1),
        insecure_seed=7,
        signing_key=Path("ward7.key"),
    )
    path = tmp_path / "policy.toml"
    path.write_text(made.to_toml({"data_set": "whose", "[budget]": "for ever"}))
    assert path.read_text().splitlines()[0].endswith("# whose")
    assert "# for ever" in path.read_text()
    loaded = load_policy(path)
    names = {"ledger": "ledger.db", "schema": "schema.toml", "signing_key": "ward7.key"}
    here = {field: tmp_path / name for field, name in names.items()}
    assert loaded == replace(made, **here)
    loaded.require(agreed)
    weaker: list[dict[str, Any]] = [{"q": 0.6}, {"model": "paper-cnn"}, {"classes": 10_001}]
    if mode.is_private:
        weaker += [{"clip_norm": 1.1}, {"noise_multiplier": 1.4}]
        weaker += [{"cap": math.inf}, {"cap": 2.6}] if math.isfinite(cap) else []
    others = [make_terms(other) for other in Mode if other is not mode]
    for asked in (*others, *(replace(agreed, **change) for change in weaker)):
        with pytest.raises(RefusedError):
            loaded.require(asked)
