"""A trained model as a file, and back."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.models.build import build_model
from coinflower.learning.models.lora import merge_lora
from coinflower.protocol.terms import Terms

MODEL = "model.safetensors"
_TERMS = "terms"


def saved_model(model: nn.Module, terms: Terms, notes: Mapping[str, str] | None = None) -> bytes:
    """Return the file of a whole model: frozen parts too, and LoRA added to its layers.

    Args:
        model: The model.
        terms: What it was trained by; the file says so.
        notes: What else the file says.

    Raises:
        UserError: The model holds something that is no tensor.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, value in merge_lora(model).state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise UserError(
                f"the model cannot be saved: {name!r} is {type(value).__name__} and no tensor"
            )
        # A copy each: layers may share their memory, which files cannot.
        tensors[name] = value.detach().cpu().contiguous().clone()
    return save(tensors, metadata={**(notes or {}), _TERMS: terms.to_json()})


def load_model(path: str | Path) -> nn.Module:
    """Return a trained model, ready for use: in eval mode, with the weights of its file.

    Args:
        path: The file ``model.safetensors`` of a run, or the folder that it is in.

    Raises:
        ValueError: There is none, or it is damaged; or its own code is not installed here.
    """
    file = Path(path) / MODEL if Path(path).is_dir() else Path(path)
    try:
        with safe_open(file, framework="pt") as opened:
            notes = opened.metadata() or {}
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} cannot be read as a model: {error}") from None
    if _TERMS not in notes:
        raise UserError(f"{file} does not say which model it holds")
    terms = Terms.from_json(notes[_TERMS])
    model = build_model(
        terms.model,
        classes=terms.classes,
        row_shape=terms.row_shape,
        options=terms.model_options,
    )
    own = model.state_dict()
    if {name: one.shape for name, one in own.items()} != {
        name: one.shape for name, one in tensors.items()
    }:
        raise UserError(f"{file} holds another model than {terms.model!r} is here")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
    return model.eval()
