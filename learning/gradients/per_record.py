"""What all ways of clipping record by record share: the loss and the clip factor."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from coinflower.accounting.errors import UserError

Inputs = tuple[torch.Tensor, ...]
"""All that a model is called with, records first in each."""

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes what a model returned and the targets, records first, and returns one loss per record."""

Clipping = Literal["flat", "automatic"]
"""``flat`` scales a gradient that is longer than C down to it. ``automatic`` divides every gradient
by its norm and γ, so that nearly all have norm C and none is longer (Bu et al. 2022, arXiv
2206.07136)."""
GAMMA = 0.01
"""The γ of automatic clipping: shorter gradients than this stay shorter than half of C."""
NOBODY: AbstractContextManager[None] = nullcontext()
"""Watches nothing."""
SMALLEST_CLIP_NORM = 1e-12
LARGEST_ACTIVATION = 1e20
LEAST_LEFT = 1 / 64
"""What a sum of gradients counts as at least, over the lengths of its parts.

These may cancel; then the sum of products in single precision leaves rounding that the norm does
not show. So counted, that stays below a hundred-thousandth of the bound.
"""
_DENORMAL = 1e-40
_NUMBERS_AT_ONCE = 1 << 18
_SMALLEST_FACTOR = 1e-30  # below it come single precision's denormals, whose rounding is coarse


def check_clip_norm(clip_norm: float) -> None:
    """Refuse a clip norm that bounds nothing or that single precision cannot measure."""
    if not clip_norm >= SMALLEST_CLIP_NORM:
        raise UserError(
            f"clip_norm = {clip_norm} must be at least {SMALLEST_CLIP_NORM}: give the largest L2 "
            "norm that a record's gradient may have, or math.inf for no clipping"
        )


def summed(loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return a loss summed (not averaged) over the records.

    Raises:
        ValueError: If the loss is not one number per record.
    """
    losses = loss(outputs, targets)
    if losses.shape != (len(targets),):
        raise UserError(
            f"the loss has shape {tuple(losses.shape)} for {len(targets)} records; it must be one "
            "number per record: neither sum nor average over them"
        )
    return losses.sum()


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each record.

    Args:
        logits: What the model returned, records x classes.
        targets: The right class of each record, int64.

    Raises:
        ValueError: If the shapes do not fit or a target is not one of the model's classes.
    """
    if logits.dim() != 2 or logits.shape[0] != targets.shape[0]:
        raise UserError(
            f"the model returned shape {tuple(logits.shape)} for {targets.shape[0]} records; it "
            "must return one row of logits per record: check the model's last layer"
        )
    classes = logits.shape[1]
    low, high = (int(bound) for bound in targets.aminmax())
    if low < 0 or high >= classes:
        raise UserError(
            f"targets range from {low} to {high}, but the model has classes 0 to {classes - 1}: "
            "build the model with as many classes as the data"
        )
    return functional.cross_entropy(logits, targets, reduction="none")


def exact_device(device: torch.device) -> torch.device:
    """Return where norms are computed: on the device itself, if it knows double precision."""
    return torch.device("cpu") if device.type == "mps" else device


def exact(values: torch.Tensor) -> torch.Tensor:
    """Return values where and as gradients are added up: in single precision at least.

    In half precision a sum over many records is so coarse that one of them moves it by several C.
    """
    coarse = values.is_floating_point() and values.dtype.itemsize < torch.float32.itemsize
    return values.to(exact_device(values.device), torch.float32 if coarse else values.dtype)


def square_norms_of(gradients: torch.Tensor) -> torch.Tensor:
    """Return the squared L2 norm of each row in double precision, whose rounding is 10⁻¹⁶ of it.

    Single precision would overflow, underflow, and let a record exceed C by its rounding.
    """
    # Torch makes a copy in double precision; a few rows at a time stay in the processor's cache.
    rows = max(1, _NUMBERS_AT_ONCE // max(1, gradients.shape[1]))
    parts = [
        torch.linalg.vector_norm(part, dim=1, dtype=torch.float64)
        for part in torch.split(gradients, rows)
    ]
    return torch.cat(parts).square()


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Treat numbers below 10⁻³⁸ as 0 in the calling thread: they take a processor far longer.

    Otherwise the time that a gradient takes would reveal something about the data.
    """
    before = bool(torch.full((1,), _DENORMAL, device="cpu").mul_(1) == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def exact_products() -> Iterator[None]:
    """Multiply in single precision, whatever the user's code allows torch to do for speed.

    Products of rounded factors would let a record exceed C by up to a hundredth.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def clip_factors(
    square_norms: torch.Tensor, clip_norm: float, clipping: Clipping = "flat"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows to keep and the factor of each row: min(1, C / norm), or C / (norm + γ).

    A record whose norm is not finite, or so large that scaling it down would lose precision, is not
    kept: it contributes zero, so it can neither poison the sum nor exceed the bound C.

    Args:
        square_norms: Squared L2 norm of each record's gradient, float64.
        clip_norm: The bound C, possibly infinite.
        clipping: Whether only what is longer is scaled, or everything (`Clipping`).

    Returns:
        A boolean vector over all records, and the float64 factors of all records (those of records
        that are not kept mean nothing).
    """
    norms = square_norms.sqrt()
    if math.isinf(clip_norm):
        return norms.isfinite(), torch.ones_like(norms)
    if clipping == "automatic":
        factors = clip_norm / (norms + GAMMA)
    else:
        factors = (clip_norm / norms).clamp(max=1.0)
    return factors >= _SMALLEST_FACTOR, factors


def trainable_parameters(model: nn.Module, *, recurse: bool = True) -> list[nn.Parameter]:
    """Return the parameters that are learned, in the order of ``model.parameters()``."""
    return [parameter for parameter in model.parameters(recurse) if parameter.requires_grad]
