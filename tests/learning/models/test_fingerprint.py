"""Fingerprints: alike for the same model, and for no other."""

from __future__ import annotations

import functools
import importlib
import itertools
import linecache
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from coinflower.learning import FineTuning, build_model, fingerprint
from coinflower.learning.models.build import MODELS

SHAPES: dict[str, tuple[int, ...]] = {
    **{"linear": (5,), "mlp": (5,), "digits": (1, 8, 8), "paper-cnn": (1, 28, 28)},
    "tanh-cnn": (1, 28, 28),
    **{"resnet18-gn": (3, 16, 16), "gru": (9,), "transformer": (9,)},
}


def of(name: str, *, shape: tuple[int, ...] | None = None, classes: int = 3, **more: Any) -> str:
    return fingerprint(build_model(name, classes=classes, row_shape=shape or SHAPES[name], **more))


def test_weights_do_not_matter():
    for name in MODELS:
        assert of(name, seed=1) == of(name, seed=2)


def test_everything_else_does():
    several = [
        *(of(name) for name in MODELS),
        of("mlp", classes=4),
        of("mlp", shape=(6,)),
        of("mlp", options={"widths": [64, 65]}),
        of("mlp", options={"activation": "relu"}),
        of("mlp", tuning=FineTuning(trained_parts=("5",))),
        of("mlp", tuning=FineTuning(trained_parts=("5",), lora_rank=2)),
        of("transformer", options={"heads": 2}),
        of("resnet18-gn", options={"groups": 16}),
    ]
    assert all(one != two for one, two in itertools.combinations(several, 2))


def test_settings_that_a_layer_does_not_print_matter_too():
    """The number of heads, the place of a norm and a stride are in no ``repr``."""

    class Scaled(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(x) * self.scale
            return out

    assert fingerprint(Scaled(1.0)) != fingerprint(Scaled(2.0))
    assert fingerprint(nn.MultiheadAttention(8, 2)) != fingerprint(nn.MultiheadAttention(8, 4))
    before, after = (nn.TransformerEncoderLayer(8, 2, norm_first=first) for first in (True, False))
    assert repr(before) == repr(after)
    assert fingerprint(before) != fingerprint(after)


def test_settings_that_options_choose_matter_wherever_they_are_kept():
    class Kept(nn.Module):
        def __init__(self, **kept: Any) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            vars(self).update(kept)

    def leaking(slope: float) -> Any:
        return functools.partial(functional.leaky_relu, negative_slope=slope)

    several = [{"_slope": 1}, {"_slope": 2}, {"act": leaking(0.1)}, {"act": leaking(0.2)}]
    assert len({fingerprint(Kept(**kept)) for kept in several}) == 4


CLASSES = {
    "of its own": "class Net(nn.Linear):\n    def forward(self, x):\n        return {}\n",
    "of its base": "class Base(nn.Linear):\n    def forward(self, x):\n        return {}\n"
    "class Net(Base):\n    pass\n",
}


@pytest.mark.parametrize("code", CLASSES.values(), ids=CLASSES)
def test_another_code_under_the_same_name_has_another_fingerprint(tmp_path, monkeypatch, code):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = set()
    for what in ("x", "x.flip(0)"):
        (tmp_path / "pinned_net.py").write_text("from torch import nn\n" + code.format(what))
        linecache.clearcache()
        importlib.invalidate_caches()
        sys.modules.pop("pinned_net", None)
        found.add(fingerprint(importlib.import_module("pinned_net").Net(2, 2)))
    assert len(found) == 2
