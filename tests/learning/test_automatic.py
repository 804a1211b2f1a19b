"""Automatic clipping: every gradient times C / (|g| + γ), and never longer than C."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coinflower.accounting.errors import UserError
from coinflower.learning import Groups, clipped_gradient_sum
from tests.support.clipped_models import MODELS, batch, sample_gradients

SOME = ["convolution", "few positions", "words", "gru", "recurrent"]
GAMMA = 0.01


def automatic(rows: torch.Tensor, clip_norm: float) -> torch.Tensor:
    rows = rows.double()
    return rows * (clip_norm / (rows.norm(dim=1) + GAMMA))[:, None]


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("clip_norm", [0.3, 50.0])
def test_the_sum_is_that_of_a_loop_over_records(name, clip_norm):
    model, (inputs, targets) = MODELS[name](), batch(6)
    expected = automatic(sample_gradients(model, inputs, targets), clip_norm).sum(0)
    actual = clipped_gradient_sum(model, inputs, targets, clip_norm, clipping="automatic")
    torch.testing.assert_close(actual.double(), expected, atol=1e-5 * clip_norm, rtol=1e-5)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("chunk_size", [1, 100])
def test_a_persons_mean_is_clipped_once(name, chunk_size):
    model, (inputs, targets) = MODELS[name](), batch(6)
    rows = sample_gradients(model, inputs, targets).double()
    persons = torch.tensor([0, 1, 0, 2, 2, 2])
    means = torch.stack([rows[persons == person].mean(0) for person in range(3)])
    actual = clipped_gradient_sum(
        model, inputs, targets, 0.3, clipping="automatic", persons=persons, chunk_size=chunk_size
    )
    torch.testing.assert_close(actual.double(), automatic(means, 0.3).sum(0), atol=1e-5, rtol=1e-5)


def test_a_groups_sum_that_is_short_enough_is_left_as_it_is():
    model, (inputs, targets) = MODELS["convolution"](), batch(6)
    wide = Groups(of=torch.zeros(6, dtype=torch.int64), largest_norm=100.0)
    with_it = clipped_gradient_sum(model, inputs, targets, 0.3, clipping="automatic", groups=wide)
    without = clipped_gradient_sum(model, inputs, targets, 0.3, clipping="automatic")
    torch.testing.assert_close(with_it, without, atol=1e-6, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), log_scale=st.floats(-20, 20), log_clip=st.floats(-8, 3))
def test_one_record_is_never_longer_than_the_clip_norm(seed, log_scale, log_clip):
    torch.manual_seed(seed)
    model, (inputs, targets) = MODELS["few positions"](), batch(1)
    one = clipped_gradient_sum(
        model, inputs * 10**log_scale, targets, 10**log_clip, clipping="automatic"
    )
    assert one.double().norm() <= 10**log_clip * (1 + 1e-5)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_record_without_finite_gradient_contributes_nothing(poison):
    model, (inputs, targets) = MODELS["convolution"](), batch(3)
    inputs[:] = poison
    total = clipped_gradient_sum(model, inputs, targets, 1.0, clipping="automatic")
    assert torch.equal(total, torch.zeros_like(total))


def test_it_needs_a_clip_norm():
    model, (inputs, targets) = MODELS["convolution"](), batch(3)
    with pytest.raises(UserError, match="needs a clip norm"):
        clipped_gradient_sum(model, inputs, targets, math.inf, clipping="automatic")
