import pytest
import torch

from coinflower.learning import build_model, count_parameters, flatten_parameters, load_parameters


def test_loading_what_was_flattened_changes_nothing():
    model = build_model("paper-cnn", classes=10, seed=1)
    other = build_model("paper-cnn", classes=10, seed=2)
    load_parameters(other, flatten_parameters(model))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_flat_parameters_are_a_copy():
    model = build_model("digits", classes=10)
    flat = flatten_parameters(model)
    flat.zero_()
    assert flatten_parameters(model).abs().sum() > 0


def test_frozen_parameters_are_not_part_of_the_vector():
    model = build_model("digits", classes=10)
    model[1].weight.requires_grad_(False)
    assert len(flatten_parameters(model)) == count_parameters(model) == 32 + 32 * 10 + 10


def test_arrays_load_like_tensors():
    model = build_model("digits", classes=10)
    load_parameters(model, flatten_parameters(model).numpy() * 0)
    assert not flatten_parameters(model).any()


@pytest.mark.parametrize("shape", [(2409,), (2411,), (1, 2410)])
def test_a_vector_of_the_wrong_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r"needs \(2410,\)"):
        load_parameters(build_model("digits", classes=10), torch.zeros(shape))
