"""Printing what a model is."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from coinflower.learning import build_model, fingerprint, model_of
from tests.support.builders import make_terms

MLP = ("mlp", "--row-shape", "5", "--outputs", "3")
Command = Callable[..., tuple[object, str, str]]


@pytest.fixture
def command(program, monkeypatch, tmp_path) -> Command:
    """Return a function that prints a fingerprint and gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(program, "model", "fingerprint")


def told(command: Command, *arguments: str) -> dict[str, object]:
    code, out, err = command(*arguments, "--json")
    assert (code, err) == (0, "")
    found: dict[str, object] = json.loads(out)
    return found


def test_a_models_fingerprint_is_printed_with_its_size(command):
    model = build_model("mlp", classes=3, row_shape=(5,), options={"widths": [7]})
    assert told(command, *MLP, "--model-option", "widths=7") == {
        "model": "mlp",
        "fingerprint": fingerprint(model),
        "parameters": 66,
        "trained": 66,
    }
    _, out, _ = command(*MLP, "--model-option", "widths=7")
    assert out.startswith(f"{fingerprint(model)}\n66 parameters")


def test_frozen_parts_and_lora_count(command):
    options = ("--model-option", "widths=7", "--trained-part", "3", "--lora-rank", "2")
    found = told(command, *MLP, *options)
    assert (found["parameters"], found["trained"]) == (66 + 24, 24 + 24)


@pytest.mark.parametrize("name", ["terms.json", "settings.toml"])
def test_terms_say_which_model_is_meant(command, tmp_path: Path, name: str):
    terms = make_terms(model="mlp", row_shape=(5,), pretrained="0" * 64)
    text = terms.to_json() if name == "terms.json" else tomli_w.dumps({"terms": terms.to_fields()})
    (tmp_path / name).write_text(text)
    assert told(command, str(tmp_path / name))["fingerprint"] == fingerprint(model_of(terms))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["mlp"], "is made to measure"),
        (["mlp", "--row-shape", "wide"], "--row-shape wide must be integers"),
        (["nobody"], "'nobody' is unknown"),
        (["missing.json"], "missing.json cannot be read"),
        (["missing.toml"], "no file missing.toml"),
    ],
)
def test_what_is_no_model_is_told_in_a_sentence(command, arguments, complaint):
    code, _, err = command(*arguments)
    assert code == 2
    assert complaint in err
