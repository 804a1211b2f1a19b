"""The one place that imports torchvision, or lets the user's code import it."""

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import torch

_Result = TypeVar("_Result")

_library: Any = None  # torch forgets the schemas when the last reference goes


def torchvision_datasets() -> ModuleType:
    """Return ``torchvision.datasets``."""
    return mending_torchvision(functools.partial(importlib.import_module, "torchvision.datasets"))


def torchvision_models() -> ModuleType:
    """Return ``torchvision.models``."""
    return mending_torchvision(functools.partial(importlib.import_module, "torchvision.models"))


def mending_torchvision(action: Callable[[], _Result]) -> _Result:
    """Do what may import torchvision, again if it fails for want of an operator.

    A torchvision built for CUDA beside a torch built for the CPU fails to import because two of its
    compiled operators are missing. Neither data sets nor classifiers need them, so declaring them
    is enough; this is done only after the plain import has failed with that error.
    """
    try:
        return action()
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    _declare_operators()
    return action()


def _declare_operators() -> None:
    global _library  # noqa: PLW0603 - operators are declared once per process
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    _library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        _library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
