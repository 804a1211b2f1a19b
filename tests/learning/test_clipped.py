"""Clipped gradient sums: right, bounded, and refused where they cannot be."""

import copy
import math
import re
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from coinflower.learning import Groups, build_model, clipped_gradient_sum, load_data
from coinflower.learning.gradients import convolutions
from coinflower.learning.gradients.gradsample import _REPLACEMENTS
from coinflower.learning.gradients.per_record import denormals_flushed, square_norms_of
from tests.support import scans
from tests.support.clipped_models import (
    MODELS,
    OwnParameter,
    Reshaped,
    batch,
    loop_sum,
    opacus_sum,
    sample_gradients,
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip_norm", [0.5, math.inf])
def test_the_sum_is_that_of_a_loop_over_samples(name, clip_norm):
    model = MODELS[name]()
    inputs, targets = batch(6)
    expected = loop_sum(model, inputs, targets, clip_norm)
    actual = clipped_gradient_sum(model, inputs, targets, clip_norm)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("copied", [{"_SHORT_RUN": 0}, {"_SHORT_RUN": 1000, "_CACHED_NUMBERS": 1}])
def test_how_a_kernels_view_is_copied_does_not_change_the_sum(name, copied, monkeypatch):
    model = MODELS[name]()
    inputs, targets = batch(6)
    for constant, value in copied.items():
        monkeypatch.setattr(convolutions, constant, value)
    actual = clipped_gradient_sum(model, inputs, targets, 0.5)
    expected = loop_sum(model, inputs, targets, 0.5)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [scans.BOOKED, scans.PER_RECORD])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_a_model_may_take_several_tensors(name, chunk_size):
    model = build_model(name, classes=2)
    inputs, targets = load_data(scans.LOADER).train.batch(np.arange(11))
    expected = loop_sum(model, inputs, targets, 0.5)
    actual = clipped_gradient_sum(model, inputs, targets, 0.5, chunk_size=chunk_size)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="for 10 inputs must be one per input"):
        clipped_gradient_sum(model, (inputs[0], inputs[1][1:]), targets, 0.5)


def test_groups_of_several_tensors_are_put_in_order_together():
    model = build_model(scans.BOOKED, classes=2)
    inputs, targets = load_data(scans.LOADER).train.batch(np.arange(6))
    of = torch.tensor([1, 0, 1, 0, 0, 1])
    groups = Groups(of=of, largest_norm=1e9)
    actual = clipped_gradient_sum(model, inputs, targets, 0.5, groups=groups, chunk_size=4)
    expected = loop_sum(model, inputs, targets, 0.5)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("clip_norm", [0.1, 5.0])
def test_the_sum_on_the_papers_model_is_that_of_opacus(clip_norm):
    model = build_model("paper-cnn", classes=62)
    inputs, targets = torch.rand(9, 1, 28, 28), torch.randint(0, 62, (9,))
    expected = opacus_sum(copy.deepcopy(model), inputs, targets, clip_norm)
    actual = clipped_gradient_sum(model, inputs, targets, clip_norm)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_no_samples_give_exact_zeros(name):
    model = MODELS[name]()
    inputs, targets = batch(0)
    total = clipped_gradient_sum(model, inputs, targets, 1.0)
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert torch.equal(total, torch.zeros(count))


@pytest.mark.parametrize("name", ["convolution", "own activation", "words", "gru"])
@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])
def test_chunks_do_not_change_the_sum(name, chunk_size):
    model = MODELS[name]()
    inputs, targets = batch(7)
    whole = clipped_gradient_sum(model, inputs, targets, 0.5, chunk_size=7)
    parts = clipped_gradient_sum(model, inputs, targets, 0.5, chunk_size=chunk_size)
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_left_as_it_was(name):
    model = MODELS[name]()
    if name != "own parameter":
        model.eval()
        next(model.children()).train()
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    learned = [parameter.requires_grad for parameter in model.parameters()]
    attributes = [set(vars(module)) for module in model.modules()]
    clipped_gradient_sum(model, *batch(3), 1.0)
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == learned
    assert [set(vars(module)) for module in model.modules()] == attributes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(not hasattr(parameter, "grad_sample") for parameter in model.parameters())
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_the_model_is_left_as_it_was_even_after_an_error():
    model = MODELS["convolution"]()
    inputs, _ = batch(3)
    with pytest.raises(ValueError, match="classes 0 to 2"):
        clipped_gradient_sum(model, inputs, torch.tensor([0, 1, 3]), 1.0)
    assert not model[0]._forward_hooks
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_gradients_are_computed_under_no_grad_too():
    model = MODELS["convolution"]()
    inputs, targets = batch(3)
    with torch.no_grad():
        inside = clipped_gradient_sum(model, inputs, targets, 1.0)
    assert torch.equal(inside, clipped_gradient_sum(model, inputs, targets, 1.0))


def test_dropout_follows_the_models_mode():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4 * 81, 3))
    inputs, targets = batch(4)
    model.eval()
    still = clipped_gradient_sum(model, inputs, targets, math.inf)
    torch.testing.assert_close(still, loop_sum(model, inputs, targets, math.inf))
    model.train()
    assert not torch.allclose(clipped_gradient_sum(model, inputs, targets, math.inf), still)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    samples=st.integers(1, 8),
    log_scale=st.floats(-20, 20),
    log_clip=st.floats(-8, 3),
    name=st.sampled_from(
        ["convolution", "grouped", "sequence", "few positions", "gru", "transformer", "attention"]
    ),
)
def test_removing_one_sample_moves_the_sum_by_at_most_the_clip_norm(
    seed, samples, log_scale, log_clip, name
):
    torch.manual_seed(seed)
    model = MODELS[name]()
    clip_norm = 10**log_clip
    inputs, targets = batch(samples)
    inputs[0] *= 10**log_scale
    with_it = clipped_gradient_sum(model, inputs, targets, clip_norm)
    without = clipped_gradient_sum(model, inputs[1:], targets[1:], clip_norm)
    assert (with_it - without).double().norm() <= clip_norm * (1 + 1e-5)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**31), log_scale=st.floats(-30, 38), log_weight=st.floats(-30, 30))
def test_one_sample_never_exceeds_the_clip_norm_at_any_scale(seed, log_scale, log_weight):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4 * 81, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        model[3].weight *= 10**log_weight
    inputs, targets = batch(1)
    total = clipped_gradient_sum(model, inputs * 10**log_scale, targets, 1e-6)
    assert total.isfinite().all()
    assert total.double().norm() <= 1e-6 * (1 + 1e-5)


@pytest.mark.parametrize(
    "name",
    ["convolution", "strided and padded", "sequence", "few positions", "group norm", "transformer"],
)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e38])
@pytest.mark.parametrize("clip_norm", [0.5, math.inf])
def test_a_sample_without_finite_gradient_contributes_nothing(name, poison, clip_norm):
    model = MODELS[name]()
    inputs, targets = batch(5)
    clean = clipped_gradient_sum(model, inputs[1:], targets[1:], clip_norm)
    inputs[0] = poison
    poisoned = clipped_gradient_sum(model, inputs, targets, clip_norm)
    assert poisoned.isfinite().all()
    difference = (poisoned - clean).norm()
    if math.isfinite(poison):
        assert difference <= clip_norm * (1 + 1e-5)
    else:
        assert difference <= 1e-6 * (1 + clean.norm())  # single precision


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), log_scale=st.floats(-3, 18), log_clip=st.floats(-3, 3))
def test_positions_that_cancel_leave_no_rounding_beyond_the_clip_norm(seed, log_scale, log_clip):
    torch.manual_seed(seed)
    model = Reshaped((4, 81), nn.Linear(81, 50))
    inputs, targets = batch(1, (4, 81))
    inputs *= 10**log_scale
    inputs[:, 3] = -inputs[:, :3].sum(1)
    total = clipped_gradient_sum(model, inputs, targets, 10**log_clip)
    assert total.double().norm() <= 10**log_clip * (1 + 1e-5)


def test_small_gradients_are_not_scaled_up():
    model = MODELS["convolution"]()
    inputs, targets = batch(4)
    rows = sample_gradients(model, inputs, targets)
    total = clipped_gradient_sum(model, inputs, targets, 1e9)
    torch.testing.assert_close(total, rows.sum(0), atol=1e-5, rtol=1e-5)


def test_the_default_chunk_keeps_every_sample():
    model = build_model("paper-cnn", classes=10)
    inputs, targets = torch.rand(401, 1, 28, 28), torch.randint(0, 10, (401,))
    total = clipped_gradient_sum(model, inputs, targets, math.inf)
    loss = functional.cross_entropy(model(inputs), targets, reduction="sum")
    ordinary = torch.autograd.grad(loss, list(model.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in ordinary])
    assert (total - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4).requires_grad_(False),
        nn.BatchNorm2d(4).eval(),
        nn.BatchNorm2d(4, track_running_stats=False).requires_grad_(False).eval(),
        nn.BatchNorm2d(4, affine=False),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, track_running_stats=True),
    ],
)
def test_layers_that_mix_samples_are_refused_by_name(layer):
    model = nn.Sequential()
    model.add_module("mixer", layer)
    model.add_module("last", nn.Linear(9, 3))
    with pytest.raises(ValueError, match=rf"'mixer' \({type(layer).__name__}\).*GroupNorm"):
        clipped_gradient_sum(model, *batch(2), 1.0)


@pytest.mark.parametrize(
    "options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=["max_norm", "by frequency"]
)
def test_words_that_mix_records_are_refused_by_name(options):
    model = Reshaped((324,), nn.Embedding(11, 3, **options), words=11)
    with pytest.raises(ValueError, match=r"'layers.0' \(Embedding\) mixes.*leave out max_norm"):
        clipped_gradient_sum(model, *batch(2), 1.0)


@pytest.mark.parametrize(
    ("layer", "replacement"),
    [
        (nn.RNN(9, 3), "DPRNN (from opacus.layers import DPRNN)"),
        (nn.GRU(9, 3), "DPGRU (from opacus.layers import DPGRU)"),
        (nn.LSTM(9, 3), "DPLSTM (from opacus.layers import DPLSTM)"),
        (nn.GRUCell(9, 3), "DPGRUCell (from opacus.layers.dp_rnn import DPGRUCell)"),
        (
            nn.TransformerEncoderLayer(4, 2),
            "DPMultiheadAttention (from opacus.layers import DPMultiheadAttention)",
        ),
    ],
)
def test_layers_opacus_refuses_are_answered_with_the_import_to_use(layer, replacement):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4 * 81, 3))
    model.add_module("memory", layer)
    with pytest.raises(ValueError, match=rf"'memory.*replace it with {re.escape(replacement)}"):
        clipped_gradient_sum(model, *batch(2), 1.0)


def test_what_the_message_names_can_be_imported():
    layers, cells = import_module("opacus.layers"), import_module("opacus.layers.dp_rnn")
    for name in _REPLACEMENTS.values():
        assert hasattr(cells if name.endswith("Cell") else layers, name)


def test_a_frozen_layer_may_be_one_that_opacus_refuses():
    frozen = nn.TransformerEncoderLayer(9, 3, 8, dropout=0, batch_first=True).requires_grad_(False)
    model = Reshaped((36, 9), frozen, nn.Linear(9, 7), nn.PReLU(36), nn.Linear(7, 3))
    inputs, targets = batch(5)
    expected = loop_sum(model, inputs, targets, 0.5)
    actual = clipped_gradient_sum(model, inputs, targets, 0.5)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_padding_that_opacus_gets_wrong_is_refused_beside_other_layers():
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), nn.PReLU(), nn.Flatten()
    )
    with pytest.raises(ValueError, match=r"padding_mode = 'reflect' of layer '0'"):
        clipped_gradient_sum(model, *batch(2), 1.0)


def test_a_layer_of_ones_own_in_eval_mode_is_refused_by_name():
    with pytest.raises(ValueError, match=r"\(OwnParameter\) is in eval mode"):
        clipped_gradient_sum(OwnParameter().eval(), *batch(2), 1.0)


@pytest.mark.parametrize("name", ["group norm", "called twice", "words", "transformer"])
def test_eval_mode_gives_the_same_where_no_layer_depends_on_it(name):
    model = MODELS[name]()
    inputs, targets = batch(3)
    trained = clipped_gradient_sum(model.train(), inputs, targets, 1.0)
    evaluated = clipped_gradient_sum(model.eval(), inputs, targets, 1.0)
    assert torch.equal(trained, evaluated)


def test_a_model_that_folds_samples_into_rows_is_refused():
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(9, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.reshape(-1, 9)).view(len(x), -1, 3).mean(1)

    with pytest.raises(ValueError, match="batch dimension first"):
        clipped_gradient_sum(Folded(), *batch(2), 1.0)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan])
def test_a_clip_norm_that_bounds_nothing_is_refused(clip_norm):
    with pytest.raises(ValueError, match=f"clip_norm = {clip_norm}"):
        clipped_gradient_sum(MODELS["convolution"](), *batch(2), clip_norm)


def test_targets_must_be_one_class_per_input():
    inputs, targets = batch(4)
    with pytest.raises(ValueError, match=r"targets of shape \(3,\) for 4 inputs"):
        clipped_gradient_sum(MODELS["convolution"](), inputs, targets[:3], 1.0)


def test_the_value_that_torch_would_ignore_is_not_a_target():
    inputs, _ = batch(2)
    with pytest.raises(ValueError, match="range from -100"):
        clipped_gradient_sum(MODELS["convolution"](), inputs, torch.tensor([-100, 0]), 1.0)


def test_a_chunk_has_at_least_one_sample():
    with pytest.raises(ValueError, match="chunk_size = 0"):
        clipped_gradient_sum(MODELS["convolution"](), *batch(2), 1.0, chunk_size=0)


def test_a_model_without_anything_to_learn_is_refused():
    with pytest.raises(ValueError, match="no trainable parameter"):
        clipped_gradient_sum(nn.Flatten(), *batch(2), 1.0)


@pytest.mark.parametrize("name", ["convolution", "group norm"])
def test_the_length_of_one_clipped_sample_is_right_to_single_precision(name):
    """Norms of many numbers are added up in double precision, so the clip factor is exact."""
    model = MODELS[name]()
    inputs, targets = batch(6)
    for row in range(len(inputs)):
        one = clipped_gradient_sum(model, inputs[row : row + 1], targets[row : row + 1], 1e-3)
        assert abs(float(one.double().norm()) / 1e-3 - 1) < 3e-7


def test_norms_are_those_of_double_precision():
    rows = torch.rand(3, 300_000) + 1e4
    rows[1] = 1e-30
    rows[2, 0] = 3e38
    exact = rows.double().square().sum(1)
    torch.testing.assert_close(square_norms_of(rows), exact, rtol=1e-12, atol=0)
    assert square_norms_of(rows[:0]).shape == (0,)
    assert square_norms_of(torch.zeros(4, 0)).tolist() == [0, 0, 0, 0]


def test_denormals_are_flushed_while_gradients_are_computed_and_only_then():
    seen = []

    class Watch(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            seen.append(float(torch.full((1,), 1e-40) * 1))
            return super().forward(inputs)

    model = nn.Sequential(nn.Flatten(), Watch(4, 2))
    model[1].requires_grad_(False)
    model.append(nn.Linear(2, 2))
    inputs, targets = torch.full((3, 4), 1e-39), torch.zeros(3, dtype=torch.int64)
    assert float(torch.full((1,), 1e-40) * 1) > 0
    clipped_gradient_sum(model, inputs, targets, 1.0)
    assert set(seen) == {0.0}
    assert float(torch.full((1,), 1e-40) * 1) > 0


def test_who_flushes_denormals_anyway_goes_on_doing_so():
    torch.set_flush_denormal(True)
    try:
        with denormals_flushed():
            pass
        assert float(torch.full((1,), 1e-40) * 1) == 0
    finally:
        torch.set_flush_denormal(False)
