"""Models by name: their shapes, options, and what is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import build_model, count_parameters, flatten_parameters, size_of
from coinflower.learning.models.build import MADE_TO_MEASURE, MODELS
from coinflower.learning.models.sequences import GatedUnits
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import BUILT_IN_MODELS
from coinflower.protocol.terms import Terms

ROWS: dict[str, tuple[tuple[int, ...], bool]] = {
    "linear": ((5,), False),
    "mlp": ((2, 3), False),
    "digits": ((1, 8, 8), False),
    "paper-cnn": ((1, 28, 28), False),
    "tanh-cnn": ((1, 28, 28), False),
    "resnet18-gn": ((2, 16, 16), False),
    "gru": ((6,), True),
    "transformer": ((6,), True),
}
"""A shape of rows for each model, and whether they hold words."""


def rows_for(name: str, records: int) -> torch.Tensor:
    shape, words = ROWS[name]
    return torch.randint(0, 9, (records, *shape)) if words else torch.rand(records, *shape)


def terms_for(model: str, **changes: Any) -> Terms:
    shape = ROWS[model][0] if model in MADE_TO_MEASURE else None
    fields: dict[str, Any] = {
        **{"experiment": "e", "mode": Mode.TRUSTED, "p": 0.5, "q": 0.2, "clip_norm": 1.0},
        **{"noise_multiplier": 1.0, "rounds": 5, "model": model, "classes": 3, "row_shape": shape},
    }
    return Terms(**(fields | changes))


def test_a_policy_knows_the_names_of_all_built_in_models():
    assert set(MODELS) == BUILT_IN_MODELS == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_a_built_in_model_answers_with_so_many_numbers_per_record(name):
    model = build_model(name, classes=3, row_shape=ROWS[name][0])
    assert model(rows_for(name, 4)).shape == (4, 3)


@pytest.mark.parametrize("name", ROWS)
def test_the_size_of_a_model_is_known_before_it_is_built(name):
    model = build_model(name, classes=3, row_shape=ROWS[name][0])
    assert size_of(terms_for(name)) == count_parameters(model)


def test_a_size_beyond_any_memory_is_counted_all_the_same():
    wide = {"widths": [65_536] * 64}
    assert size_of(terms_for("mlp", model_options=wide)) > 2 * 10**11


@pytest.mark.parametrize("name", sorted(MADE_TO_MEASURE))
def test_a_model_made_to_measure_needs_a_measure(name):
    with pytest.raises(UserError, match=f"'{name}' is made to measure: state row_shape"):
        build_model(name, classes=3)


def test_an_mlp_has_the_layers_that_its_options_say():
    def layers(**options: Any) -> list[str]:
        return [str(layer) for layer in build_model("mlp", classes=2, row_shape=(3,), **options)]

    def widths(**options: Any) -> list[int]:
        model = build_model("mlp", classes=2, row_shape=(3,), options=options)
        return [layer.out_features for layer in model if isinstance(layer, nn.Linear)]

    assert widths() == [64, 64, 2]
    assert widths(widths=[7, 5]) == [7, 5, 2]
    assert widths(widths=7) == [7, 2]
    assert widths(widths=7, depth=3) == [7, 7, 7, 2]
    assert widths(depth=1) == [64, 2]
    assert "GELU(approximate='none')" in layers(options={"activation": "gelu"})


def test_a_small_image_is_not_shrunk_at_once():
    small = build_model("resnet18-gn", classes=2, row_shape=(3, 32, 32))
    large = build_model("resnet18-gn", classes=2, row_shape=(3, 96, 96))
    stated = build_model("resnet18-gn", classes=2, row_shape=(3, 32, 32), options={"stem": "large"})
    assert small.conv1.stride == (1, 1)
    assert large.conv1.stride == stated.conv1.stride == (2, 2)
    assert not any(isinstance(each, nn.BatchNorm2d) for each in small.modules())


def test_gated_units_compute_what_torchs_do():
    ours, theirs = GatedUnits(5), nn.GRU(5, 5, batch_first=True)
    theirs.weight_ih_l0, theirs.bias_ih_l0 = ours.inward.weight, ours.inward.bias
    theirs.weight_hh_l0, theirs.bias_hh_l0 = ours.onward.weight, ours.onward.bias
    rows = torch.randn(3, 7, 5)
    torch.testing.assert_close(ours(rows), theirs(rows)[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_a_word_beyond_the_vocabulary_is_word_0(name):
    model = build_model(name, classes=3, row_shape=(4,), options={"words": 8})
    known, beyond = torch.tensor([[1, 0, 7, 0]]), torch.tensor([[1, 8, 7, -(2**40)]])
    assert torch.equal(model(known), model(beyond))


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_sequences_of_vectors_are_taken_too(name):
    model = build_model(name, classes=3, row_shape=(6, 2))
    assert model(torch.rand(4, 6, 2)).shape == (4, 3)


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("mlp", {"width": 3}, "unknown key 'width'; did you mean 'widths'"),
        ("mlp", {"widths": []}, "widths"),
        ("mlp", {"widths": [0]}, r"widths\.0 = 0 must be at least 1"),
        ("mlp", {"widths": [10**9]}, "must be at most 65536"),
        ("mlp", {"widths": 10**400}, "widths"),
        ("mlp", {"widths": [1] * 65}, "widths"),
        ("mlp", {"widths": True}, "widths"),
        ("mlp", {"widths": "64"}, "widths"),
        ("mlp", {"depth": 65}, "must be at most 64"),
        ("mlp", {"widths": [4, 4], "depth": 3}, "depth = 3"),
        ("mlp", {"activation": "__import__('os')"}, "activation"),
        ("digits", {"widths": [3]}, "unknown key 'widths'"),
        ("linear", {"": 1}, "unknown key"),
        ("gru", {"words": 1}, "must be at least 2"),
        ("gru", {"heads": 2}, "unknown key 'heads'"),
        ("transformer", {"width": 10, "heads": 4}, "must be a multiple"),
        ("resnet18-gn", {"stem": "none"}, "stem"),
    ],
)
def test_options_that_are_unknown_or_out_of_range_are_refused(name, options, complaint):
    with pytest.raises(UserError, match=complaint):
        build_model(name, classes=3, row_shape=ROWS[name][0], options=options)


@pytest.mark.parametrize(
    ("name", "shape"), [("gru", (3, 8, 8)), ("transformer", (1, 2, 3)), ("resnet18-gn", (5,))]
)
def test_rows_of_a_shape_that_a_model_does_not_take_are_refused(name, shape):
    with pytest.raises(UserError, match="choose another model"):
        build_model(name, classes=3, row_shape=shape)


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    options=st.dictionaries(
        st.sampled_from(["widths", "depth", "activation", "words", "width", "heads", "stem", "x"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=5)
        | st.lists(st.integers() | st.floats(), max_size=3),
        max_size=3,
    ),
)
def test_garbage_from_the_wire_is_refused_in_a_sentence_and_never_built(name, options):
    fields = terms_for(name).to_fields() | {"model_options": options}
    with contextlib.suppress(UserError):
        assert size_of(Terms.from_fields(fields)) > 0


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


def test_a_model_answers_with_at_least_one_number():
    with pytest.raises(ValueError, match="classes = 0"):
        build_model("digits", classes=0)


def test_a_model_of_ones_own_takes_its_options_as_keywords(tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\n\ndef build(classes, wide=2):\n    return nn.Linear(wide, classes)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = build_model("own_net:build", classes=3, options={"wide": 5})
    assert isinstance(model, nn.Linear)
    assert model.in_features == 5
    with pytest.raises(UserError, match=r"'own_net:build' fails.*unexpected keyword"):
        build_model("own_net:build", classes=3, options={"deep": 5})


def test_a_model_of_ones_own_with_options_is_counted_before_it_is_built(tmp_path, monkeypatch):
    (tmp_path / "own_large.py").write_text(
        "from torch import nn\n\ndef build(classes, wide=2):\n    return nn.Linear(wide, classes)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert size_of(terms_for("own_large:build")) is None
    huge = terms_for("own_large:build", model_options={"wide": 10**12})
    assert size_of(huge) == 3 * 10**12 + 3
