"""Clipped sums over persons: those of a loop over persons, bounded whatever their rows hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coinflower.learning import Groups, build_model, capped_sum, clipped_gradient_sum
from tests.support.clipped_models import MODELS, batch, sample_gradients

SOME = ["convolution", "sequence", "frozen", "group norm"]


def loop_over_persons(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    clip_norm: float,
    persons: torch.Tensor,
) -> torch.Tensor:
    rows = sample_gradients(model, inputs, targets).double()
    means = torch.stack([rows[persons == person].mean(0) for person in persons.unique()])
    total: torch.Tensor = (means * (clip_norm / means.norm(dim=1)).clamp(max=1)[:, None]).sum(0)
    return total.float()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip_norm", [0.3, math.inf])
def test_the_sum_is_that_of_a_loop_over_persons(name: str, clip_norm: float) -> None:
    model = MODELS[name]()
    inputs, targets = batch(12)
    persons = torch.tensor([7, 1, 1, -4, 7, 7, 2, -4, 1, 7, 7, 7])
    expected = loop_over_persons(model, inputs, targets, clip_norm, persons)
    actual = clipped_gradient_sum(model, inputs, targets, clip_norm, persons=persons)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    assert (actual - clipped_gradient_sum(model, inputs, targets, clip_norm)).norm() > 0.1


@pytest.mark.parametrize("name", MODELS)
def test_of_one_record_each_the_sum_is_that_of_records(name: str) -> None:
    model = MODELS[name]()
    inputs, targets = batch(9)
    persons = torch.randperm(9)
    torch.testing.assert_close(
        clipped_gradient_sum(model, inputs, targets, 0.5, persons=persons),
        clipped_gradient_sum(model, inputs, targets, 0.5),
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("chunk_size", [1, 3, 8, 100])
def test_chunks_cut_no_person_short(name: str, chunk_size: int) -> None:
    model = MODELS[name]()
    inputs, targets = batch(20)
    persons = torch.randint(0, 4, (20,))
    expected = loop_over_persons(model, inputs, targets, 0.3, persons)
    actual = clipped_gradient_sum(
        model, inputs, targets, 0.3, persons=persons, chunk_size=chunk_size
    )
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("chunk_size", [2, 5, 100])
def test_persons_within_groups_are_clipped_first_then_the_groups(
    name: str, chunk_size: int
) -> None:
    model = MODELS[name]()
    inputs, targets = batch(24)
    clients = torch.arange(24) % 3
    persons = torch.randint(0, 3, (24,))  # the same numbers at every client: other people
    groups = Groups(of=clients, largest_norm=0.5)
    sums = [
        capped_sum(
            loop_over_persons(model, inputs[mine], targets[mine], 0.3, persons[mine]).numpy(), 0.5
        )
        for mine in (clients == client for client in range(3))
    ]
    actual = clipped_gradient_sum(
        model, inputs, targets, 0.3, persons=persons, groups=groups, chunk_size=chunk_size
    )
    expected = torch.from_numpy(np.sum(sums, axis=0))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 63, 64, 65, 300])
def test_persons_of_all_sizes_on_the_papers_model(rows: int) -> None:
    model = build_model("paper-cnn", classes=10)
    persons = torch.cat([torch.full((rows,), 5), torch.arange(40) // 3, torch.full((70,), 99)])
    inputs, targets = torch.rand(len(persons), 1, 28, 28), torch.randint(0, 10, (len(persons),))
    expected = loop_over_persons(model, inputs, targets, 0.4, persons)
    actual = clipped_gradient_sum(model, inputs, targets, 0.4, persons=persons, chunk_size=200)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("chunk_size", [2, 100])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_person_with_one_record_without_gradient_contributes_zero_and_nobody_else_does(
    name: str, chunk_size: int, bad: float
) -> None:
    model = MODELS[name]()
    inputs, targets = batch(9)
    persons = torch.tensor([0, 0, 1, 1, 1, 2, 2, 3, 4])
    others = (persons != 1) & (persons != 3)
    expected = loop_over_persons(model, inputs[others], targets[others], 0.3, persons[others])
    inputs[3], inputs[7] = bad, bad
    actual = clipped_gradient_sum(
        model, inputs, targets, 0.3, persons=persons, chunk_size=chunk_size
    )
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 12),
    log_scale=st.floats(-20, 30),
    log_clip=st.floats(-6, 3),
    chunk_size=st.sampled_from([3, 100]),
    name=st.sampled_from(["convolution", "grouped", "sequence", "group norm"]),
)
def test_removing_one_person_moves_the_sum_by_at_most_the_clip_norm(
    seed: int, rows: int, log_scale: float, log_clip: float, chunk_size: int, name: str
) -> None:
    torch.manual_seed(seed)
    model = MODELS[name]()
    clip_norm = 10**log_clip
    inputs, targets = batch(rows + 4)
    inputs[0] *= 10**log_scale
    persons = torch.cat([torch.zeros(rows, dtype=torch.int64), torch.tensor([1, 1, 1, 2])])
    with_it, without = (
        clipped_gradient_sum(
            model, inputs[n:], targets[n:], clip_norm, persons=persons[n:], chunk_size=chunk_size
        )
        for n in (0, rows)
    )
    assert (with_it - without).double().norm() <= clip_norm * (1 + 1e-5)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    pairs=st.integers(1, 80),
    log_scale=st.floats(0, 19),
    log_left=st.floats(-12, 0),
    chunk_size=st.sampled_from([7, 1000]),
)
def test_a_person_whose_huge_gradients_cancel_stays_within_the_clip_norm(
    seed: int, pairs: int, log_scale: float, log_left: float, chunk_size: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Linear(30, 3)
    nn.init.zeros_(model.weight)  # so that x and -x have opposite gradients
    x = torch.randn(pairs, 30) * 10**log_scale
    inputs = torch.cat([x, -x * (1 + 10**log_left * torch.randn(pairs, 1))])
    targets = torch.randint(0, 3, (pairs,)).repeat(2)
    persons = torch.zeros(2 * pairs, dtype=torch.int64)
    total = clipped_gradient_sum(
        model, inputs, targets, 1.0, persons=persons, chunk_size=chunk_size
    )
    assert total.double().norm() <= 1 + 1e-5


@pytest.mark.parametrize("name", ["convolution", "group norm"])
def test_no_records_of_nobody_give_exact_zeros(name: str) -> None:
    model = MODELS[name]()
    inputs, targets = batch(0)
    for groups in (None, Groups(of=targets, largest_norm=1.0)):
        total = clipped_gradient_sum(model, inputs, targets, 1.0, persons=targets, groups=groups)
        assert total.norm() == 0


def test_every_record_needs_a_person() -> None:
    model, (inputs, targets) = MODELS["convolution"](), batch(4)
    with pytest.raises(ValueError, match=r"persons of shape \(3,\) for 4 records"):
        clipped_gradient_sum(model, inputs, targets, 1.0, persons=targets[:3])
