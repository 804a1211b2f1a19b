"""A model's fingerprint: a hash of what it computes, but for its weights."""

import hashlib
import inspect
import json
from typing import Any

from torch import nn

_LIBRARIES = ("torch", "torchvision", "opacus", "coinflower")


def fingerprint(model: nn.Module) -> str:
    """Return a SHA-256 of a model's layers, their settings, and the shapes of its parameters.

    Of classes of the user's own the source counts, too. Another release of torch may give a model
    another fingerprint.
    """
    layers = [
        (name, _name_of(type(module)), _settings(module), _source(type(module)))
        for name, module in model.named_modules(remove_duplicate=False)
    ]
    parameters = [
        (name, list(one.shape), str(one.dtype), one.requires_grad)
        for name, one in model.named_parameters(remove_duplicate=False)
    ]
    buffers = [(name, list(one.shape), str(one.dtype)) for name, one in model.named_buffers()]
    text = json.dumps([layers, parameters, buffers], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _settings(module: nn.Module) -> dict[str, Any]:
    return {
        name: _plain(value)
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training"
    }


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return _name_of(value if callable(value) else type(value))


def _name_of(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _source(kind: type) -> str | None:
    if kind.__module__.partition(".")[0] in _LIBRARIES:
        return None
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # made on the fly
        return None
