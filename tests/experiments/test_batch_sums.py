"""Sums of large batches: cut into parts by the batch alone, and the same however many compute."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from coinflower.experiments.simulator.batch_sums import Batch, BatchSums
from coinflower.learning import (
    Groups,
    build_model,
    clipped_gradient_sum,
    flatten_parameters,
    load_data,
    make_task,
)
from coinflower.protocol.terms import CLASSIFICATION

CLIP_NORM = 0.5


@pytest.fixture(scope="module")
def records():
    return load_data("digits").train


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build_model("digits", classes=10)


def batch_of(records, count):
    """Return records of clients that hold seven each; some records are at several clients."""
    places = np.arange(count)
    return Batch(rows=places % len(records), owners=places // 7)


def sums(model, records, *, cap_norm=math.inf, threads=1):
    task = make_task(CLASSIFICATION, {}, outputs=10)
    return BatchSums(model, records, task, clip_norm=CLIP_NORM, cap_norm=cap_norm, threads=threads)


@pytest.mark.parametrize("cap_norm", [1.5 * CLIP_NORM, math.inf])
@pytest.mark.parametrize("count", [0, 1, 6, 255, 256, 257, 1000, 3000, 6000, 20_001])
def test_parts_hold_every_record_once_and_no_more_than_a_few_hundred(
    model, records, cap_norm, count
):
    batch = batch_of(records, count)
    parts = sums(model, records, cap_norm=cap_norm)._parts(batch)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts)][: len(parts)]
    assert parts[-1].stop == count
    assert max(part.stop - part.start for part in parts) <= 512
    if count >= 2048:
        assert len(parts) >= 8  # for as many threads
    if math.isfinite(cap_norm):
        owners = [set(batch[part].owners.tolist()) for part in parts]
        assert all(not one & other for one, other in pairwise(owners))
    else:
        assert len(parts) == 1 or len(parts) % 2 == 0


@pytest.mark.parametrize("cap_norm", [1.5 * CLIP_NORM, math.inf])
@pytest.mark.parametrize("count", [0, 70, 2600, 4500])
def test_the_sum_is_that_of_all_records_at_once_on_any_number_of_threads(
    model, records, cap_norm, count
):
    torch.set_num_threads(1)  # as a simulation does
    batch = batch_of(records, count)
    found = [
        sums(model, records, cap_norm=cap_norm, threads=threads).sum(batch) for threads in (1, 2, 3)
    ]
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
    (inputs,), targets = records.batch(batch.rows)
    groups = None
    if math.isfinite(cap_norm):
        groups = Groups(of=torch.from_numpy(batch.owners), largest_norm=cap_norm)
    expected = clipped_gradient_sum(model, inputs, targets, CLIP_NORM, groups=groups)
    assert expected.shape == flatten_parameters(model).shape
    np.testing.assert_allclose(found[0], expected.numpy(), rtol=1e-4, atol=2e-4)
