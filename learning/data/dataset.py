"""A labelled set of images in memory, and its rows as tensors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Images of one channel with their classes, in a training and a test part.

    Attributes:
        name: What the data is called in messages.
        train_inputs: N x H x W, uint8 (0 to 255) or float32 (0 to 1).
        train_targets: N classes, int64.
        test_inputs: Like ``train_inputs``.
        test_targets: Like ``train_targets``.
        classes: Number of classes; every target is below it.
        writers: Id of the person who wrote each training image, or None if unknown.
    """

    name: str
    train_inputs: NDArray[Any]
    train_targets: NDArray[np.int64]
    test_inputs: NDArray[Any]
    test_targets: NDArray[np.int64]
    classes: int
    writers: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for part, inputs, targets in (
            ("train", self.train_inputs, self.train_targets),
            ("test", self.test_inputs, self.test_targets),
        ):
            _check_part(f"{self.name}: the {part} part", inputs, targets, self.classes)
        if self.train_inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise UserError(
                f"{self.name}: training images are {_size(self.train_inputs)}, but test images "
                f"{_size(self.test_inputs)}: both parts must have one size"
            )
        if self.writers is not None and self.writers.shape != self.train_targets.shape:
            raise UserError(
                f"{self.name}: {len(self.writers)} writer ids for {len(self.train_targets)} "
                "training images: there must be one each"
            )


def _size(inputs: NDArray[Any]) -> str:
    return " x ".join(map(str, inputs.shape[1:]))


def _check_part(what: str, inputs: NDArray[Any], targets: NDArray[np.int64], classes: int) -> None:
    if inputs.ndim != 3:
        raise UserError(f"{what} has images of shape {inputs.shape}; it must be N x height x width")
    if inputs.dtype not in (np.dtype(np.uint8), np.dtype(np.float32)):
        raise UserError(f"{what} has images of type {inputs.dtype}: give uint8, or float32 in 0..1")
    if targets.shape != (len(inputs),):
        raise UserError(
            f"{what} has {len(inputs)} images, but labels of shape {targets.shape}: there must be "
            "one label per image"
        )
    if len(inputs) == 0:
        raise UserError(f"{what} is empty, but needs at least one image")
    if inputs.dtype == np.float32 and not (inputs.min() >= 0 and inputs.max() <= 1):
        raise UserError(
            f"{what} has values from {inputs.min()} to {inputs.max()}: scale them to 0..1"
        )
    if targets.min() < 0 or targets.max() >= classes:
        raise UserError(
            f"{what} has labels from {targets.min()} to {targets.max()}; they must lie in 0.."
            f"{classes - 1}"
        )


def to_tensor(inputs: NDArray[Any]) -> torch.Tensor:
    """Return rows of a data set as a float32 tensor N x 1 x H x W with values from 0 to 1.

    Call it on the rows of a batch, ``to_tensor(data.train_inputs[rows])``, so that the data set
    itself stays as small as its bytes.
    """
    scaled = inputs.astype(np.float32, order="C")
    if inputs.dtype == np.uint8:
        scaled /= 255
    return torch.from_numpy(scaled).unsqueeze(1)
