"""What a client's policy says of models: sizes, weights, fingerprints, devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from coinflower.accounting.errors import UserError
from coinflower.learning import (
    build_model,
    count_parameters,
    fingerprint,
    flatten_parameters,
    hash_of_weights,
    model_of,
)
from coinflower.protocol.messages import vector_to_bytes
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal, RefusedError
from coinflower.protocol.terms import Terms
from tests.support.participants import Make, enrolled, refused

MLP: dict[str, Any] = {"model": "mlp", "row_shape": (1, 8, 8), "model_options": {"widths": [16]}}


@pytest.fixture
def weights_file(tmp_path):
    model = build_model("mlp", classes=10, row_shape=(1, 8, 8), options={"widths": [16]}, seed=9)
    save_file(model.state_dict(), tmp_path / "public.safetensors")
    return tmp_path / "public.safetensors"


def tuned(make_terms: Make, file: Any, mode: Mode = Mode.TRUSTED) -> Terms:
    terms: Terms = make_terms(
        *(mode,), **MLP, q=1.0, pretrained=hash_of_weights(file), trained_parts=("3",), lora_rank=2
    )
    return terms


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"model_options": {"widths": [65_536] * 64}}, Refusal.EXTENT),
        ({"model_options": {"widths": ["wide"]}}, None),
        ({"model_options": {"words": 3}}, Refusal.MODEL),
        ({"model_options": {"depth": -1}}, Refusal.MODEL),
        ({"row_shape": (64,)}, Refusal.MODEL),
        ({"row_shape": None}, Refusal.MODEL),
        ({"trained_parts": ("head",)}, Refusal.MODEL),
        ({"trained_parts": ("3",), "lora_rank": 17}, Refusal.MODEL),
        ({"lora_rank": 2}, Refusal.MODEL),
        ({"pretrained": "0" * 64}, Refusal.WEIGHTS),
    ],
)
def test_a_model_that_cannot_be_is_refused_and_nothing_is_charged(
    owner: Any, make_terms: Make, changes: dict[str, Any], refusal: Refusal | None
) -> None:
    owner.change(models=["mlp"])
    if refusal is None:
        with pytest.raises(UserError, match="model_options"):
            make_terms(Mode.TRUSTED, **{**MLP, **changes})
        return
    terms = make_terms(Mode.TRUSTED, **{**MLP, **changes})
    assert refused(lambda: owner.open().enrol(terms)) is refusal
    assert owner.entries() == []


def test_only_what_is_trained_travels(owner: Any, make_terms: Make, weights_file: Any) -> None:
    owner.change(models=["mlp"], pretrained=[weights_file.name])
    terms = tuned(make_terms, weights_file)
    count = count_parameters(model_of(terms))
    assert count == 16 * 10 + 10 + 2 * (64 + 16)
    participant = enrolled(owner.open_with(True), terms)
    content = vector_to_bytes(flatten_parameters(model_of(terms)).numpy())
    assert participant.gradient_sum(terms, 1, content).shape == (count,)


def test_a_sum_depends_on_the_frozen_weights_of_the_file(
    owner: Any, make_terms: Make, weights_file: Any
) -> None:
    owner.change(models=["mlp"], pretrained=[weights_file.name])
    content = vector_to_bytes(flatten_parameters(model_of(tuned(make_terms, weights_file))).numpy())
    sums = []
    for seed in (9, 10):
        model = build_model(
            "mlp", classes=10, row_shape=(1, 8, 8), options={"widths": [16]}, seed=seed
        )
        save_file(model.state_dict(), weights_file)
        terms = tuned(make_terms, weights_file)
        participant = enrolled(owner.open_with(True), terms)
        sums.append(participant.gradient_sum(terms, 1, content))
    assert np.abs(sums[0] - sums[1]).max() > 1e-3


def test_weights_that_changed_since_are_refused(
    owner: Any, make_terms: Make, weights_file: Any
) -> None:
    owner.change(models=["mlp"], pretrained=[weights_file.name])
    terms = tuned(make_terms, weights_file)
    weights_file.write_bytes(weights_file.read_bytes() + b" ")
    assert refused(lambda: owner.open().enrol(terms)) is Refusal.WEIGHTS


def test_weights_of_another_shape_are_refused_named_to_the_owner_and_nothing_is_charged(
    owner: Any, make_terms: Make, weights_file: Any
) -> None:
    save_file({"1.weight": torch.zeros(16, 63)}, weights_file)
    owner.change(models=["mlp"], pretrained=[weights_file.name])
    terms = make_terms(**MLP, pretrained=hash_of_weights(weights_file))
    with pytest.raises(
        RefusedError, match=r"'1.weight' has shape \(16, 63\) in .*, but \(16, 64\)"
    ):
        owner.open().enrol(terms)
    assert owner.entries() == []


def test_a_model_is_pinned_by_its_fingerprint(owner: Any, make_terms: Make) -> None:
    pinned = make_terms(Mode.TRUSTED, **MLP)
    other = make_terms(Mode.TRUSTED, **{**MLP, "model_options": {"widths": [17]}})
    frozen = make_terms(Mode.TRUSTED, **MLP, trained_parts=("3",))
    owner.change(models=["mlp", "digits"], fingerprints={"mlp": fingerprint(model_of(pinned))})
    participant = owner.open()
    for terms in (other, frozen):
        assert refused(lambda terms=terms: participant.enrol(terms)) is Refusal.FINGERPRINT
    assert owner.entries() == []
    participant.enrol(pinned)
    participant.enrol(make_terms(Mode.TRUSTED, experiment="digits-2"))


def test_a_device_that_is_not_there_is_told_when_a_client_starts(
    owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    owner.change(device="cuda")
    with pytest.raises(UserError, match="device = 'cuda' is not available"):
        owner.open()


def test_the_best_device_there_is_computes_the_same(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms(Mode.TRUSTED, q=1.0)
    sums = []
    for device in ("cpu", "auto"):
        owner.change(device=device)
        participant = enrolled(owner.open_with(True, True), terms)
        sums.append(participant.gradient_sum(terms, len(sums) + 1, weights))
    np.testing.assert_allclose(sums[0], sums[1], atol=1e-5)
