"""A model's fingerprint: a hash of what it computes, but for its weights."""

import contextlib
import functools
import hashlib
import inspect
import json
from typing import Any

from torch import nn

_LIBRARIES = ("torch", "torchvision", "opacus", "coinflower")
_TORCHS = frozenset(vars(nn.Module()))  # what every module has


def fingerprint(model: nn.Module) -> str:
    """Return a SHA-256 of a model's layers, their settings, and the shapes of its parameters.

    Of classes of the user's own the source counts, too, and that of those they are derived from;
    functions that they call do not. Another release of torch may give a model another fingerprint.
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
    own = _is_own(type(module))
    return {
        name: _plain(value)
        for name, value in vars(module).items()
        if name not in _TORCHS and (own or not name.startswith("_"))
    }


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, functools.partial):
        return [_plain(each) for each in (value.func, value.args, value.keywords)]
    return _name_of(value if callable(value) else type(value))


def _name_of(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _is_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in (*_LIBRARIES, "builtins")


def _source(kind: type) -> str | list[str] | None:
    """Return the source of a class and of those of the user's own that it is derived from."""
    sources = []
    for each in filter(_is_own, kind.__mro__):
        with contextlib.suppress(OSError, TypeError):  # made on the fly
            sources.append(inspect.getsource(each))
    return sources if len(sources) > 1 else next(iter(sources), None)
