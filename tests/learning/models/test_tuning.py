"""Public weights, frozen parts, and what is learned beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import (
    FineTuning,
    WeightFiles,
    build_model,
    clipped_gradient_sum,
    count_parameters,
    flatten_parameters,
    hash_of_weights,
)
from coinflower.learning.models.frozen import freeze_all_but
from coinflower.learning.models.lora import LoraLinear, add_lora, merge_lora
from tests.support.clipped_models import Reshaped, loop_sum

ROWS, TARGETS = torch.randn(6, 5), torch.tensor([0, 1, 2, 0, 1, 2])


def mlp(**tuning: object) -> nn.Module:
    options = {"widths": [7, 6]}
    return build_model(
        "mlp", classes=3, row_shape=(5,), options=options, tuning=FineTuning(**tuning)
    )


def weights_of(model: nn.Module, path: Path, *, without: str = "none") -> Path:
    state = {name: one + 1 for name, one in model.state_dict().items()}
    save_file({name: one for name, one in state.items() if not name.startswith(without)}, path)
    return path


def test_a_model_begins_with_the_weights_of_the_file(tmp_path):
    file = weights_of(mlp(), tmp_path / "w.safetensors")
    ours = flatten_parameters(mlp(pretrained=file))
    assert torch.equal(ours, flatten_parameters(mlp()) + 1)


def test_only_trained_parts_are_trained_and_travel(tmp_path):
    file = weights_of(mlp(), tmp_path / "w.safetensors", without="5")
    model = mlp(pretrained=file, trained_parts=("5",))
    assert count_parameters(model) == 6 * 3 + 3
    expected = loop_sum(model, ROWS, TARGETS, 0.5)
    actual = clipped_gradient_sum(model, ROWS, TARGETS, 0.5)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_a_part_is_a_whole_name_or_one_up_to_a_dot():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(11)))
    freeze_all_but(model, ["1", "5.bias"])
    trained = [name for name, one in model.named_parameters() if one.requires_grad]
    assert trained == ["1.weight", "1.bias", "5.bias"]


@pytest.mark.parametrize("part", ["head", "5.weigh", "", ".", "5."])
def test_a_part_that_no_parameter_has_is_refused(part):
    with pytest.raises(UserError, match=r"no parameter's name begins so; they begin with 1, 3, 5"):
        mlp(trained_parts=("5", part))


def test_weights_of_another_shape_are_refused(tmp_path):
    file = tmp_path / "w.safetensors"
    save_file({"1.weight": torch.zeros(7, 4)}, file)
    with pytest.raises(UserError, match=r"'1.weight' has shape \(7, 4\) in .*, but \(7, 5\)"):
        mlp(pretrained=file)


def test_weights_of_another_model_are_refused(tmp_path):
    file = tmp_path / "w.safetensors"
    save_file({"fc.weight": torch.zeros(7, 4)}, file)
    with pytest.raises(UserError, match=r"holds 'fc.weight', which the model does not have"):
        mlp(pretrained=file)


@pytest.mark.parametrize("content", [b"", b"no weights", b"\xff" * 100])
def test_a_file_that_is_not_safetensors_is_refused(tmp_path, content):
    file = tmp_path / "w.safetensors"
    file.write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as safetensors"):
        mlp(pretrained=file)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        mlp(pretrained=tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="cannot be read"):
        hash_of_weights(tmp_path / "w.safetensors")


def test_a_frozen_part_must_have_weights(tmp_path):
    file = weights_of(mlp(), tmp_path / "w.safetensors", without="1")
    with pytest.raises(UserError, match=r"'1.weight' is frozen, but .* has no weights for it"):
        mlp(pretrained=file, trained_parts=("5",))


def test_weights_are_found_by_their_hash_also_after_they_changed(tmp_path):
    one = weights_of(mlp(), tmp_path / "one.safetensors")
    two = weights_of(mlp(), tmp_path / "two.safetensors", without="5")
    files = WeightFiles([one, two])
    assert files.find(hash_of_weights(two)) == two
    assert files.find(hash_of_weights(one)) == one
    before = hash_of_weights(one)
    one.write_bytes(b"other weights")
    with pytest.raises(UserError, match=f"weights of hash {before}, which no file here has"):
        files.find(before)
    with pytest.raises(UserError, match="no file is listed"):
        WeightFiles().find(before)


def test_frozen_batch_norm_becomes_the_constant_that_it_was_trained_to_be():
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    )
    freeze_all_but(model, ["4"])
    assert not model[1].training
    inputs = torch.randn(6, 1, 8, 8)
    expected = loop_sum(model, inputs, TARGETS, 0.5)
    actual = clipped_gradient_sum(model, inputs, TARGETS, 0.5)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_lora_begins_with_what_the_model_says_without_it():
    plain, adapted = mlp(), mlp(trained_parts=("5",), lora_rank=2)
    assert torch.equal(plain(ROWS), adapted(ROWS))
    assert count_parameters(adapted) == 6 * 3 + 3 + 2 * (5 + 7) + 2 * (7 + 6)


def trained_lora(rank: int = 2) -> nn.Module:
    model = mlp(trained_parts=("5",), lora_rank=rank)
    for part in model.modules():
        if isinstance(part, LoraLinear):
            nn.init.normal_(part.up.weight)
    return model


def test_the_sum_of_a_model_with_lora_is_that_of_a_loop_over_records():
    model = trained_lora()
    expected = loop_sum(model, ROWS, TARGETS, 0.5)
    actual = clipped_gradient_sum(model, ROWS, TARGETS, 0.5)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_merged_lora_computes_the_same_with_the_layers_that_were_there():
    model = trained_lora()
    merged = merge_lora(model)
    torch.testing.assert_close(merged(ROWS), model(ROWS), atol=1e-6, rtol=1e-5)
    assert merged.state_dict().keys() == mlp().state_dict().keys()
    assert any(isinstance(part, LoraLinear) for part in model.modules())


def test_a_rank_that_a_layer_does_not_have_is_refused():
    with pytest.raises(UserError, match=r"lora_rank = 6 is more than layer '1' has \(it is 5 by 7"):
        mlp(trained_parts=("5",), lora_rank=6)
    with pytest.raises(UserError, match="lora_rank = -1"):
        mlp(trained_parts=("5",), lora_rank=-1)


def test_lora_needs_something_frozen():
    with pytest.raises(UserError, match="beside frozen Linear layers, but the model has none"):
        mlp(lora_rank=2)


def test_a_layer_in_two_places_has_one_lora():
    shared = nn.Linear(5, 5)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(5, 3))
    freeze_all_but(model, ["3"])
    add_lora(model, 2)
    assert model[0] is model[2]
    assert count_parameters(model) == 5 * 3 + 3 + 2 * 10


def test_torchs_own_layers_keep_their_parts():
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True)
    model = Reshaped((4, 8), nn.Linear(8, 8), block, nn.Linear(8, 3))
    freeze_all_but(model, ["layers.2"])
    add_lora(model, 2)
    assert isinstance(model.layers[0], LoraLinear)
    assert not any(isinstance(part, LoraLinear) for part in block.modules())
    inputs = torch.randn(6, 32)
    expected = loop_sum(model, inputs, TARGETS, 0.5)
    actual = clipped_gradient_sum(model, inputs, TARGETS, 0.5)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
