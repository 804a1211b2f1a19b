"""A client whose records are several arrays each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coinflower.client.data import load_local_data
from coinflower.learning import build_model, clipped_gradient_sum, flatten_parameters
from coinflower.protocol.messages import vector_to_bytes
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal, load_policy
from tests.support import scans
from tests.support.participants import enrolled, refused


@pytest.fixture(params=["folder", "npz", scans.LOADER])
def radiology(request: pytest.FixtureRequest, owner: Any) -> Any:
    """An owner of scans with reports, in each kind of source."""
    folder = owner.policy.parent
    scans.write_npy(folder / "folder", 30)
    np.savez(folder / "npz", **scans.arrays(30))
    data = "npz.npz" if request.param == "npz" else request.param
    owner.change(data=data, loaders=[scans.LOADER], models=[scans.BOOKED, "digits"])
    return owner


def test_it_answers_with_the_sum_over_its_records(radiology: Any, make_terms: Any) -> None:
    terms = make_terms(Mode.TRUSTED, q=1.0, model=scans.BOOKED, classes=2)
    model = build_model(scans.BOOKED, classes=2)
    weights = vector_to_bytes(flatten_parameters(model).numpy())
    participant = enrolled(radiology.open_with(True), terms)
    total = participant.gradient_sum(terms, 1, weights)
    inputs, targets = load_local_data(load_policy(radiology.policy)).batch(slice(None))
    expected = clipped_gradient_sum(model, inputs, targets, terms.clip_norm).numpy()
    np.testing.assert_allclose(total, expected, atol=1e-6)
    assert expected.any()


def test_it_refuses_a_model_that_takes_one_array(radiology: Any, make_terms: Any) -> None:
    terms = make_terms(model="digits", classes=2)
    assert refused(lambda: radiology.open().enrol(terms)) is Refusal.MODEL
    assert radiology.entries() == []
