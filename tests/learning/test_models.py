import pytest
import torch
from torch import nn

from coinflower.learning import build_model, count_parameters, flatten_parameters, load_parameters


def test_the_papers_network_has_156526_parameters_at_62_classes():
    assert count_parameters(build_model("paper-cnn", classes=62)) == 156_526


def test_the_papers_network_has_the_papers_layers():
    model = build_model("paper-cnn", classes=62)
    shapes = []
    x = torch.rand(2, 1, 28, 28)
    for layer in model:
        x = layer(x)
        shapes.append((type(layer).__name__, tuple(x.shape[1:])))
    assert shapes == [
        ("Conv2d", (16, 14, 14)),
        ("ReLU", (16, 14, 14)),
        ("MaxPool2d", (16, 13, 13)),
        ("Conv2d", (32, 5, 5)),
        ("ReLU", (32, 5, 5)),
        ("MaxPool2d", (32, 4, 4)),
        ("Flatten", (512,)),
        ("Linear", (256,)),
        ("ReLU", (256,)),
        ("Linear", (62,)),
    ]


def test_the_digits_model_takes_small_images():
    assert build_model("digits", classes=10)(torch.rand(3, 1, 8, 8)).shape == (3, 10)


def test_the_seed_decides_the_initial_weights():
    one = flatten_parameters(build_model("digits", classes=10, seed=5))
    same = flatten_parameters(build_model("digits", classes=10, seed=5))
    other = flatten_parameters(build_model("digits", classes=10, seed=6))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_building_a_model_leaves_torchs_random_state_alone():
    before = torch.get_rng_state()
    build_model("paper-cnn", classes=10, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_model_is_refused_with_the_nearest_name_and_the_choices():
    with pytest.raises(
        ValueError, match=r"'papercnn' is unknown \(did you mean paper-cnn\?\).*digits"
    ):
        build_model("papercnn", classes=10)


def test_a_model_of_ones_own_is_built_by_its_function(tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text(
        "from torch import nn\n\ndef build(classes):\n    return nn.Linear(4, classes)\n"
        "\nnumber = 3\n\ndef wrong(classes):\n    return classes\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = build_model("own_model:build", classes=7)
    assert isinstance(model, nn.Linear)
    assert model.out_features == 7
    for name, complaint in {
        "own_model:missing": "cannot be loaded",
        "no_such_module:build": "cannot be loaded",
        "own_model:number": "not a function",
        "own_model:wrong": "must return a torch nn.Module",
        ":build": "is unknown",
    }.items():
        with pytest.raises(ValueError, match=complaint):
            build_model(name, classes=7)


def test_a_classifier_needs_two_classes():
    with pytest.raises(ValueError, match="classes = 1"):
        build_model("digits", classes=1)


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
