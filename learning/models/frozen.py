"""Parts of a model that are not trained, and the public weights they have."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from coinflower.accounting.errors import UserError


class WeightFiles:
    """Files of public weights on this machine, found by their hash; none comes from the wire.

    Args:
        paths: Where they are.
    """

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        self._paths = tuple(paths)
        self._hashes: dict[Path, tuple[tuple[int, int], str]] = {}

    def find(self, wanted: str) -> Path:
        """Return the file that has a hash.

        Raises:
            UserError: None of them has, or one cannot be read.
        """
        for path in self._paths:
            if self._hash_of(path) == wanted:
                return path
        listed = ", ".join(map(str, self._paths)) or "no file is listed"
        raise UserError(
            f"the terms begin with pretrained weights of hash {wanted}, which no file here has "
            f"({listed}): list the file as pretrained"
        )

    def _hash_of(self, path: Path) -> str:
        """Hash a file once, and again only if it changed."""
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            known = self._hashes.get(path)
            if known is None or known[0] != stamp:
                known = self._hashes[path] = (stamp, hash_of_weights(path))
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
        return known[1]


def hash_of_weights(path: Path) -> str:
    """Return the SHA-256 of a file of weights, by which terms name it.

    Raises:
        UserError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def load_weights(model: nn.Module, path: Path) -> set[str]:
    """Write the tensors of a safetensors file into a model, and return their names.

    Raises:
        UserError: It is no such file, or has a tensor that the model has not, or in another shape.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read as safetensors: {error}") from None
    own = model.state_dict()
    for name, tensor in tensors.items():
        if name not in own:
            raise UserError(
                f"{path} holds {name!r}, which the model does not have: leave it out of the file"
            )
        if tensor.shape != own[name].shape:
            raise UserError(
                f"{name!r} has shape {tuple(tensor.shape)} in {path}, but "
                f"{tuple(own[name].shape)} in the model: use the weights of the same model, or "
                "leave it out of the file"
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
    return set(tensors)


def freeze_all_but(model: nn.Module, parts: Sequence[str]) -> None:
    """Train nothing but some parts; BatchNorm elsewhere becomes the constant it was trained to be.

    Args:
        model: The model.
        parts: Beginnings of parameters' names, up to a dot or whole.

    Raises:
        UserError: A part is that of no parameter.
    """
    names = [name for name, _ in model.named_parameters()]
    for part in parts:
        if not any(_is_in(name, part) for name in names):
            tops = ", ".join(dict.fromkeys(name.partition(".")[0] for name in names))
            raise UserError(
                f"trained_parts names {part!r}, but no parameter's name begins so; they begin with "
                f"{tops}"
            )
    for name, parameter in model.named_parameters():
        if not any(_is_in(name, part) for part in parts):
            parameter.requires_grad_(False)
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and not any(_is_in(name, part) for part in parts):
            module.eval()


def require_weights(model: nn.Module, loaded: set[str], path: Path) -> None:
    """Refuse a frozen part whose weights are not in the file: it would stay as it began."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad and name not in loaded:
            raise UserError(
                f"{name!r} is frozen, but {path} has no weights for it: train it, or add it to the "
                "file"
            )


def _is_in(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")
