"""A trained model as a file: always saved, and loaded as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import (
    FineTuning,
    build_model,
    load_model,
    model_of,
    saved_model,
)
from coinflower.learning.models.lora import LoraLinear
from tests.support import own_models
from tests.support.builders import make_terms

OWN = [own_models.RECURRENT, own_models.TIED]


def moved(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", ["digits", *OWN])
def test_a_model_is_loaded_as_it_was_saved(tmp_path, name):
    terms = make_terms(model=name)
    model = moved(model_of(terms))
    (tmp_path / "model.safetensors").write_bytes(saved_model(model, terms))
    rows = torch.rand(3, 1, 8, 8)
    for place in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        loaded = load_model(place)
        assert not loaded.training
        assert torch.equal(loaded(rows), model.eval()(rows))


def test_frozen_parts_are_saved_and_lora_is_added_to_its_layers(tmp_path):
    base = build_model("mlp", classes=10, row_shape=(1, 8, 8))
    save_file(moved(base).state_dict(), tmp_path / "w.safetensors")
    tuning: dict[str, Any] = {"trained_parts": ("5",), "lora_rank": 2}
    model = build_model(
        "mlp",
        classes=10,
        row_shape=(1, 8, 8),
        tuning=FineTuning(pretrained=tmp_path / "w.safetensors", **tuning),
    )
    for part in model.modules():
        if isinstance(part, LoraLinear):
            nn.init.normal_(part.up.weight)
    terms = make_terms(model="mlp", row_shape=(1, 8, 8), pretrained="0" * 64, **tuning)
    (tmp_path / "model.safetensors").write_bytes(saved_model(model, terms, {"insecure": "true"}))
    assert load_file(tmp_path / "model.safetensors").keys() == base.state_dict().keys()
    rows = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(load_model(tmp_path)(rows), model(rows), atol=1e-4, rtol=1e-4)


def test_what_no_file_can_hold_is_told():
    with pytest.raises(UserError, match="cannot be saved: '_extra_state' is str and no tensor"):
        saved_model(own_models.Extra(3), make_terms())


def test_what_is_no_model_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot be read as a model"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read as a model"):
        load_model(tmp_path)
    save_file({"one": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="does not say which model it holds"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(saved_model(nn.Linear(2, 3), make_terms()))
    with pytest.raises(UserError, match="holds another model than 'digits'"):
        load_model(tmp_path)
