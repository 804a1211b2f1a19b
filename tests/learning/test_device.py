"""Where a model computes: one code path, which makes every tensor where the model is."""

import pytest
import torch

from coinflower.accounting.errors import UserError
from coinflower.learning import Groups, clipped_gradient_sum, flatten_parameters
from coinflower.learning.device import device_holding, device_of
from tests.support.clipped_models import MODELS, batch


def test_the_processor_is_always_there():
    assert device_of("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_is_the_best_there_is(monkeypatch, cuda, mps, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert device_of("auto").type == chosen


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_told_in_a_sentence(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match=f"device = '{name}' is not available.*choose cpu"):
        device_of(name)


def test_an_unknown_device_is_told_with_the_known_ones():
    with pytest.raises(UserError, match="'tpu' is unknown; choose one of cpu, cuda, mps, auto"):
        device_of("tpu")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("of", ["records", "persons", "groups"])
def test_every_tensor_is_made_where_the_model_is(name, of):
    """Elsewhere, here on a device without numbers, it could not be computed with."""
    model, (inputs, targets) = MODELS[name](), batch(5)
    which = torch.tensor([0, 0, 1, 2, 2])
    also = {
        "records": {},
        "persons": {"persons": which},
        "groups": {"groups": Groups(of=which, largest_norm=0.6)},
    }[of]
    expected = clipped_gradient_sum(model, inputs, targets, 0.5, **also)
    with torch.device("meta"):
        actual = clipped_gradient_sum(model, inputs, targets, 0.5, **also)
        flat = flatten_parameters(model)
    assert torch.equal(actual, expected)
    assert flat.device == device_holding(model) == torch.device("cpu")
