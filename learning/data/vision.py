"""The one place that imports torchvision."""

import importlib
import sys
from types import ModuleType
from typing import Any

import torch

_library: Any = None  # torch forgets the schemas when the last reference goes


def torchvision_datasets() -> ModuleType:
    """Return ``torchvision.datasets``.

    A torchvision built for CUDA beside a torch built for the CPU fails to import because two of its
    compiled operators are missing. Data sets need neither, so declaring them is enough; this is
    done only after the plain import has failed with that error.
    """
    global _library  # noqa: PLW0603 - operators are declared once per process
    try:
        return importlib.import_module("torchvision.datasets")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    _library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        _library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return importlib.import_module("torchvision.datasets")
