"""Memory that runs out: on one record it is zero, on many they are taken in turns, else refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coinflower.client.data import load_local_data
from coinflower.learning import Records, clipped_gradient_sum, load_parameters
from coinflower.protocol.messages import vector_to_bytes
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal, load_policy
from tests.support import hungry
from tests.support.participants import answer_of, call, enrolled, question, refused

THE_ONE = 4
WEIGHTS = np.linspace(-1, 1, 650, dtype=np.float32)
SPEAKING = [Mode.TRUSTED, Mode.COVERED, Mode.LOCAL_ONLY]


@pytest.fixture(params=["array", "file"])
def hospital(request: pytest.FixtureRequest, owner: Any) -> Any:
    """An owner one of whose records is the one, in memory or in a mapped file."""
    data = load_local_data(load_policy(owner.policy))
    images = np.minimum(data.inputs, 0.5)
    images[THE_ONE, 0, 0, 0] = 1
    folder = owner.policy.parent / "own"
    folder.mkdir()
    np.save(folder / "x.npy", images)
    np.save(folder / "y.npy", data.targets)
    name = "own"
    if request.param == "array":
        name = "own.npz"
        np.savez(owner.policy.parent / name, x=images, y=data.targets)
    models = [hungry.TORCHS, hungry.NUMPYS, hungry.CROWDED, hungry.ALWAYS]
    owner.change(data=name, models=models)
    return owner


def sum_without(hospital: Any, *rows: int) -> Any:
    data: Records = load_local_data(load_policy(hospital.policy))
    inputs, targets = data.take(np.delete(np.arange(len(data)), rows)).batch(slice(None))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    load_parameters(model, torch.from_numpy(WEIGHTS))
    return clipped_gradient_sum(model, inputs, targets, 1.0).numpy()


@pytest.mark.parametrize("model", [hungry.TORCHS, hungry.NUMPYS])
@pytest.mark.parametrize("mode", SPEAKING)
def test_a_record_for_which_there_is_no_memory_counts_as_zero(
    hospital: Any, make_terms: Any, mode: Mode, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    terms = make_terms(mode, q=1.0, model=model)
    participant = enrolled(hospital.open_with(True), terms)
    total = participant.gradient_sum(terms, 1, vector_to_bytes(WEIGHTS))
    np.testing.assert_allclose(total, sum_without(hospital, THE_ONE), atol=1e-5)
    assert f"Of the records in use, counted from 0, {THE_ONE} is zero: " in caplog.text
    assert [entry.kind for entry in hospital.entries()[1:]] == ["charge", "answer"]


@pytest.mark.parametrize("mode", SPEAKING)
def test_records_that_need_too_much_together_are_taken_in_turns(
    hospital: Any, make_terms: Any, mode: Mode
) -> None:
    terms = make_terms(mode, q=1.0, model=hungry.CROWDED)
    participant = enrolled(hospital.open_with(True), terms)
    total = participant.gradient_sum(terms, 1, vector_to_bytes(WEIGHTS))
    np.testing.assert_allclose(total, sum_without(hospital), atol=1e-5)


def test_the_answer_looks_the_same_whether_or_not_memory_ran_out(
    hospital: Any, make_terms: Any
) -> None:
    terms = make_terms(q=1.0, model=hungry.TORCHS, classes=10)
    ask = question(terms, round=1, weights=vector_to_bytes(WEIGHTS))
    assert answer_of(call(hospital, "query.enrol", question(terms)))["enrolled"]
    answer = answer_of(call(hospital, "train.gradient", ask))
    assert list(answer) == ["sum"]
    assert len(answer["sum"]) == 4 * len(WEIGHTS)


def test_a_model_for_which_there_is_never_memory_is_refused_before_anything_is_charged(
    hospital: Any, make_terms: Any
) -> None:
    terms = make_terms(model=hungry.ALWAYS)
    assert refused(lambda: hospital.open().enrol(terms)) is Refusal.MODEL
    assert hospital.entries() == []
