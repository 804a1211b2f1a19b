"""A model that a program hands over as an object, made known to other processes by a name."""

from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.own_code import blamed_on_its_author
from coinflower.learning.vision import mending_torchvision

ModelSource = nn.Module | Callable[..., nn.Module]
"""A model, or what makes one from the number of its outputs."""

FOLDER = "model"
"""Where a run keeps the model that was handed over, below its own folder."""
_PREFIX = "handed_over_"
_FUNCTION = "build"
_SOURCE = '''"""The model that a program handed over; the file beside this one holds it."""

import pickle
from pathlib import Path


def build(classes):
    return pickle.loads(Path(__file__).with_suffix(".pkl").read_bytes())
'''


@dataclass(frozen=True, kw_only=True)
class HandedOver:
    """A model as it was when it was handed over, with its weights.

    Attributes:
        pickled: What makes it again.
    """

    pickled: bytes

    @property
    def module(self) -> str:
        """Name of the module that makes it; another model has another one."""
        return f"{_PREFIX}{hashlib.sha256(self.pickled).hexdigest()[:16]}"

    @property
    def name(self) -> str:
        """Name of the model, in the form of a user's own."""
        return f"{self.module}:{_FUNCTION}"

    def offer(self) -> None:
        """Let this process build it by its name."""
        module = ModuleType(self.module)
        setattr(module, _FUNCTION, lambda _: cloudpickle.loads(self.pickled))
        sys.modules[self.module] = module

    def write(self, folder: Path) -> None:
        """Let other processes build it that have this folder in their path."""
        folder.mkdir()
        (folder / f"{self.module}.py").write_text(_SOURCE)
        (folder / f"{self.module}.pkl").write_bytes(self.pickled)


def hand_over(source: ModelSource, *, classes: int, options: Mapping[str, Any]) -> HandedOver:
    """Return a model that can be carried to other processes.

    Args:
        source: The model, or what makes it.
        classes: How many numbers it answers with; a function is called with it.
        options: Keywords for a function.

    Raises:
        UserError: It is no model, or cannot be carried over.
    """
    what = f"model {_described(source)}"
    if isinstance(source, nn.Module):
        if options:
            raise UserError(f"{what} is made already, so model_options must be left out.")
        model = source
    else:
        with torch.random.fork_rng(devices=[]), blamed_on_its_author(what):
            torch.manual_seed(0)
            model = mending_torchvision(lambda: source(classes, **options))
        if not isinstance(model, nn.Module):
            raise UserError(f"{what} returned {type(model).__name__}; it must return an nn.Module.")
    try:
        pickled = cloudpickle.dumps(copy.deepcopy(model).cpu())
        cloudpickle.loads(pickled)
    except Exception as error:  # whatever a stranger's object raises
        said = " ".join(str(error).split())
        raise UserError(
            f"{what} cannot be carried to the server's process ({said}): keep in it only what can "
            "be pickled, or name it as package.module:function."
        ) from error
    return HandedOver(pickled=pickled)


def is_handed_over(name: str) -> bool:
    """Return whether a model's name is of one that was handed over."""
    return name.startswith(_PREFIX)


def _described(source: ModelSource) -> str:
    if isinstance(source, nn.Module):
        return type(source).__name__
    return getattr(source, "__qualname__", type(source).__name__)
