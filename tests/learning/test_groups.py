"""Clipped sums of groups: those of a loop over groups, however records are laid out and cut."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coinflower.learning import Groups, build_model, capped_sum, clipped_gradient_sum
from coinflower.learning.gradients.clipping import slices_of_whole_groups
from tests.support.clipped_models import MODELS, batch, loop_sum, sample_gradients


def loop_over_groups(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    clip_norm: float,
    groups: Groups,
) -> torch.Tensor:
    """Clip as clients do: each adds up its own records and caps its own sum."""
    sums = [
        capped_sum(
            loop_sum(model, inputs[mine], targets[mine], clip_norm).numpy(), groups.largest_norm
        )
        for mine in (groups.of == group for group in groups.of.unique())
    ]
    return torch.from_numpy(np.sum(sums, axis=0))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip_norm", [0.5, math.inf])
def test_the_sum_is_that_of_a_loop_over_groups(name: str, clip_norm: float) -> None:
    model = MODELS[name]()
    inputs, targets = batch(12)
    groups = Groups(of=torch.tensor([7, 1, 1, 4, 7, 7, 2, 4, 1, 7, 7, 7]), largest_norm=0.6)
    expected = loop_over_groups(model, inputs, targets, clip_norm, groups)
    actual = clipped_gradient_sum(model, inputs, targets, clip_norm, groups=groups)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    assert (actual - loop_sum(model, inputs, targets, clip_norm)).norm() > 0.1


@pytest.mark.parametrize("name", ["convolution", "sequence", "frozen", "group norm"])
@pytest.mark.parametrize("chunk_size", [1, 3, 8, 100])
def test_chunks_cut_no_group_short(name: str, chunk_size: int) -> None:
    model = MODELS[name]()
    inputs, targets = batch(20)
    groups = Groups(of=torch.randint(0, 4, (20,)), largest_norm=0.8)
    expected = loop_over_groups(model, inputs, targets, 0.5, groups)
    actual = clipped_gradient_sum(model, inputs, targets, 0.5, groups=groups, chunk_size=chunk_size)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("largest", [1, 3, 63, 64, 65, 150])
def test_groups_of_all_sizes_on_the_papers_model(largest: int) -> None:
    model = build_model("paper-cnn", classes=10)
    of = torch.cat([torch.full((largest,), 5), torch.arange(40) // 3, torch.full((70,), 99)])
    inputs, targets = torch.rand(len(of), 1, 28, 28), torch.randint(0, 10, (len(of),))
    groups = Groups(of=of, largest_norm=1.5)
    rows = sample_gradients(model, inputs, targets).double()
    rows *= (1 / rows.norm(dim=1)).clamp(max=1)[:, None]
    sums = torch.stack([rows[of == group].sum(0) for group in of.unique()])
    expected = (sums * (1.5 / sums.norm(dim=1)).clamp(max=1)[:, None]).sum(0).float()
    actual = clipped_gradient_sum(model, inputs, targets, 1.0, groups=groups, chunk_size=200)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["convolution", "group norm"])
def test_a_group_under_its_bound_stays_as_it_is(name: str) -> None:
    model = MODELS[name]()
    inputs, targets = batch(9)
    plain = clipped_gradient_sum(model, inputs, targets, 0.5)
    for of, bound in ((torch.arange(9), 0.5), (torch.arange(9) // 2, 1.0), (torch.zeros(9), 9.0)):
        grouped = clipped_gradient_sum(
            model, inputs, targets, 0.5, groups=Groups(of=of.long(), largest_norm=bound)
        )
        torch.testing.assert_close(grouped, plain, atol=1e-6, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 12),
    log_scale=st.floats(-20, 20),
    log_clip=st.floats(-6, 3),
    cap=st.floats(1, 4),
    name=st.sampled_from(["convolution", "grouped", "sequence", "group norm"]),
)
def test_removing_one_group_moves_the_sum_by_at_most_its_bound(
    seed: int, size: int, log_scale: float, log_clip: float, cap: float, name: str
) -> None:
    torch.manual_seed(seed)
    model = MODELS[name]()
    clip_norm = 10**log_clip
    inputs, targets = batch(size + 4)
    inputs[0] *= 10**log_scale
    of = torch.cat([torch.zeros(size, dtype=torch.int64), torch.tensor([1, 1, 1, 2])])
    bound = cap * clip_norm
    with_it = clipped_gradient_sum(
        model, inputs, targets, clip_norm, groups=Groups(of=of, largest_norm=bound)
    )
    without = clipped_gradient_sum(
        model,
        inputs[size:],
        targets[size:],
        clip_norm,
        groups=Groups(of=of[size:], largest_norm=bound),
    )
    assert (with_it - without).double().norm() <= bound * (1 + 1e-5)


@pytest.mark.parametrize("name", ["convolution", "sequence", "group norm"])
@pytest.mark.parametrize("clip_norm", [0.5, math.inf])
def test_a_record_without_finite_gradient_takes_nothing_from_its_group(
    name: str, clip_norm: float
) -> None:
    model = MODELS[name]()
    inputs, targets = batch(7)
    of = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    bad = torch.tensor([False, True, False, False, False, False, True])
    expected = clipped_gradient_sum(
        model,
        inputs[~bad],
        targets[~bad],
        clip_norm,
        groups=Groups(of=of[~bad], largest_norm=0.7),
    )
    inputs[bad] = math.nan
    actual = clipped_gradient_sum(
        model, inputs, targets, clip_norm, groups=Groups(of=of, largest_norm=0.7)
    )
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["convolution", "group norm"])
def test_no_records_in_no_groups_give_exact_zeros(name: str) -> None:
    model = MODELS[name]()
    inputs, targets = batch(0)
    total = clipped_gradient_sum(
        model, inputs, targets, 1.0, groups=Groups(of=targets, largest_norm=1.0)
    )
    assert total.norm() == 0


def test_every_record_needs_a_group_and_a_bound_must_bound() -> None:
    model, (inputs, targets) = MODELS["convolution"](), batch(4)
    with pytest.raises(ValueError, match=r"groups of shape \(3,\) for 4 records"):
        clipped_gradient_sum(
            model, inputs, targets, 1.0, groups=Groups(of=targets[:3], largest_norm=1.0)
        )
    with pytest.raises(ValueError, match="largest_norm = nan"):
        clipped_gradient_sum(
            model, inputs, targets, 1.0, groups=Groups(of=targets, largest_norm=math.nan)
        )


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 50))
def test_slices_hold_whole_groups_and_are_as_few_as_that_allows(
    sizes: list[int], most: int
) -> None:
    slices = list(slices_of_whole_groups(np.array(sizes, dtype=np.int64), most))
    ends = {0, *np.cumsum(sizes).tolist()}
    assert [0, *(one.stop for one in slices)] == [*(one.start for one in slices), sum(sizes)]
    for one in slices:
        assert {one.start, one.stop} <= ends
        inner = [end for end in ends if one.start < end < one.stop]
        assert one.stop - one.start <= most or not inner
    for one, after in itertools.pairwise(slices):
        next_end = min(end for end in ends if end > after.start)
        assert next_end - one.start > most
