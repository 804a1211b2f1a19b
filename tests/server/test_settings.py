"""The settings file of the server."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import Terms
from coinflower.server.lateness import Enough
from coinflower.server.settings import Settings, load_settings, save_settings
from tests.support.builders import make_terms

TERMS = make_terms(q=0.1, rounds=20, rounds_per_invitation=1)
COVERED = replace(TERMS, mode=Mode.COVERED)


def written(folder: Path, **changes: Any) -> Path:
    table = {"state": str(folder / "state"), "test_data": "digits", "terms": TERMS.to_fields()}
    table = {key: value for key, value in {**table, **changes}.items() if value is not None}
    path = folder / "settings.toml"
    path.write_text(tomli_w.dumps(table))
    return path


@pytest.mark.parametrize(
    "terms",
    [
        TERMS,
        replace(TERMS, mode=Mode.NONE, noise_multiplier=0.0, clip_norm=math.inf),
        replace(TERMS, p=1, clip_norm=2),
        replace(TERMS, cap=1.5),
    ],
)
def test_settings_survive_their_file_with_the_terms_hash(tmp_path: Path, terms: Terms) -> None:
    settings = Settings(
        terms=terms,
        state=tmp_path / "state",
        test_data="digits",
        least_clients=2,
        expected_clients=5,
        patience_seconds=9.5,
        reply_seconds=3.0,
        round_seconds=2.5,
        evaluate_every=7,
        largest_declared_size=1000,
        largest_total_size=5000,
        resume=True,
        insecure_seed=4,
    )
    save_settings(settings, tmp_path / "settings.toml")
    loaded = load_settings(tmp_path / "settings.toml")
    assert loaded == settings
    assert loaded.terms.hash == terms.hash


def test_enough_answers_survive_their_file(tmp_path: Path) -> None:
    settings = Settings(
        terms=COVERED,
        state=tmp_path / "state",
        test_data="digits",
        enough_share=0.9,
        grace_seconds=0.5,
    )
    save_settings(settings, tmp_path / "settings.toml")
    loaded = load_settings(tmp_path / "settings.toml")
    assert loaded.enough == settings.enough == Enough(share=0.9, grace_seconds=0.5)


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    loaded = load_settings(written(tmp_path))
    assert loaded == Settings(terms=TERMS, state=tmp_path / "state", test_data="digits")
    assert loaded.insecure_seed is None
    assert loaded.resume is False
    assert loaded.enough is None


def test_a_relative_state_starts_at_the_files_folder(tmp_path: Path) -> None:
    assert load_settings(written(tmp_path, state="here")).state == tmp_path / "here"


def test_a_misspelt_key_is_told_the_nearest_right_one(tmp_path: Path) -> None:
    path = written(tmp_path, evaluate_evry=3)
    with pytest.raises(ValueError, match=f"{path} has an unknown key 'evaluate_evry'.*_every'"):
        load_settings(path)


def test_test_data_may_only_be_left_out_if_clients_records_measure_the_model(
    tmp_path: Path,
) -> None:
    with pytest.raises(ValueError, match="test_data is missing: name public data"):
        load_settings(written(tmp_path, test_data=None))
    measured = {"every": 5, "noise_multiplier": 3.0, "metrics": ["accuracy"]}
    read = load_settings(written(tmp_path, test_data=None, evaluation=measured))
    assert read.evaluation is not None
    assert read.evaluation.metrics == ("accuracy",)


@pytest.mark.parametrize("key", ["terms", "state"])
def test_what_is_required_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match=f"lacks '{key}'"):
        load_settings(written(tmp_path, **{key: None}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"least_clients": 0}, "least_clients = 0 must be at least 1"),
        ({"expected_clients": 0}, "expected_clients = 0 must be"),
        ({"expected_clients": 1.5}, r"expected_clients = 1\.5 must be"),
        ({"evaluate_every": 0}, "evaluate_every = 0 must be"),
        ({"patience_seconds": 0}, "patience_seconds = 0 must be above 0"),
        ({"patience_seconds": math.inf}, "patience_seconds = inf must be"),
        ({"reply_seconds": "long"}, "reply_seconds = 'long' must be a number"),
        ({"round_seconds": 0}, "round_seconds = 0 must be"),
        ({"enough_share": 0.0}, "enough_share = 0.0 must be above 0"),
        ({"enough_share": 1.5}, "enough_share = 1.5 must be at most 1"),
        ({"grace_seconds": 0}, "grace_seconds = 0 must be above 0"),
        ({"enough_share": 0.9}, "enough_share = 0.9 does not go with mode trusted"),
        (
            {"enough_share": 0.9, "round_seconds": 3, "terms": COVERED.to_fields()},
            "enough_share = 0.9 ends rounds early, and round_seconds = 3 begins them on a clock",
        ),
        ({"largest_declared_size": 0}, "largest_declared_size = 0 must be at least"),
        ({"largest_declared_size": 1e6}, "largest_declared_size = 1000000.0 must be an integer"),
        ({"largest_total_size": True}, "largest_total_size = True must be an integer"),
        ({"largest_total_size": 2**62}, f"largest_total_size = {2**62} must be at most 500000000"),
        ({"resume": "yes"}, "resume = 'yes' must be true or false"),
        ({"resume": 1}, "resume = 1 must be true or false"),
        ({"insecure_seed": True}, "insecure_seed = True must be"),
        ({"insecure_seed": "x"}, "insecure_seed = 'x' must be an integer"),
        ({"test_data": ""}, "test_data = '' must not be empty"),
        ({"test_data": 3}, "test_data = 3 must be a text"),
        ({"state": 3}, "state = 3 must be a text"),
        ({"terms": "trusted"}, r"\[terms\] must be a table"),
        ({"terms": {**TERMS.to_fields(), "p": 2}}, "terms.p = 2 must be at most 1"),
        ({"terms": {**TERMS.to_fields(), "sigma": 2}}, r"\[terms\], has an unknown key 'sigma'"),
        ({"poll_seconds": date(2026, 1, 1)}, "no key of it is a date"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"The settings {path}.*{sentence}"):
        load_settings(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There is no file"):
        load_settings(tmp_path / "settings.toml")
