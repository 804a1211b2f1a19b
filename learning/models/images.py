"""Models for images."""

import functools
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.models.options import Shape
from coinflower.learning.vision import torchvision_models
from coinflower.protocol.strict import Positive, strict

_SMALL_PIXELS = 64


@strict
class PaperCnn:
    """The convolutional network of the paper, for 28 x 28 images of one channel.

    With 62 classes it has 156,526 parameters.

    Attributes:
        centre: Taken away from every pixel, which is 0 to 1.
        scale: What is left is divided by it. Both must be public knowledge, such as those of MNIST,
            0.13 and 0.31, and help the network to learn from few noisy steps.
    """

    centre: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    scale: Positive = 1.0

    def build(self, outputs: int, _row_shape: Shape) -> nn.Module:
        """Return the model."""
        network = _layers_of_the_paper(outputs, nn.ReLU)
        if (self.centre, self.scale) == (0.0, 1.0):
            return network
        return _standardised(network, self.centre, self.scale)


@strict
class TanhCnn:
    """The paper's network with tanh instead of ReLU, and standardised pixels unless told otherwise.

    What that is worth under noise is measured in docs/results/mnist-tanh.

    Attributes:
        centre: Taken away from every pixel, which is 0 to 1.
        scale: What is left is divided by it. Both must be public knowledge; MNIST's by default.
    """

    centre: Annotated[float, Field(allow_inf_nan=False)] = 0.1307
    scale: Positive = 0.3081

    def build(self, outputs: int, _row_shape: Shape) -> nn.Module:
        """Return the model."""
        return _standardised(_layers_of_the_paper(outputs, nn.Tanh), self.centre, self.scale)


def _standardised(network: nn.Sequential, centre: float, scale: float) -> nn.Sequential:
    return nn.Sequential(OrderedDict(inputs=Standardised(centre, scale), **dict(network._modules)))


def _layers_of_the_paper(outputs: int, activation: Callable[[], nn.Module]) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=3),
        activation(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        activation(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 256),
        activation(),
        nn.Linear(256, outputs),
    )


class Standardised(nn.Module):
    """Shifts and scales its inputs by public constants.

    Args:
        centre: Taken away from every number.
        scale: What is left is divided by it.
    """

    def __init__(self, centre: float, scale: float) -> None:
        super().__init__()
        self._centre, self._scale = centre, scale

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the numbers around 0, about 1 wide."""
        return (inputs - self._centre) / self._scale


@strict
class Digits:
    """A small network for 8 x 8 images of one channel that learns well under noise."""

    def build(self, outputs: int, _row_shape: Shape) -> nn.Module:
        """Return the model."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 32),
            nn.Tanh(),
            nn.Linear(32, outputs),
        )


@strict
class Resnet18Gn:
    """Torchvision's ResNet-18 with GroupNorm, which unlike BatchNorm keeps records apart.

    Attributes:
        groups: Groups of channels that are normalised together.
        stem: How it begins: ``large`` is the original, which shrinks an image to a quarter at
            once; ``small`` leaves small images as large as they are. By default the image decides.
    """

    groups: Annotated[int, Field(ge=1, le=64)] = 32
    stem: Literal["small", "large"] | None = None

    def build(self, outputs: int, row_shape: Shape) -> nn.Module:
        """Return the model."""
        if len(row_shape) != 3:
            raise UserError(
                f"model 'resnet18-gn' takes images of channels x height x width, not rows of shape "
                f"{row_shape}: choose another model, such as mlp"
            )
        channels, *pixels = row_shape
        stem = self.stem or ("small" if min(pixels) <= _SMALL_PIXELS else "large")
        resnet = torchvision_models().resnet
        model: nn.Module = resnet.ResNet(
            resnet.BasicBlock,
            [2, 2, 2, 2],
            num_classes=outputs,
            norm_layer=functools.partial(_group_norm, self.groups),
        )
        if stem == "small":
            model.conv1 = nn.Conv2d(channels, 64, kernel_size=3, padding=1, bias=False)
            model.maxpool = nn.Identity()
        elif channels != 3:
            model.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
        return model


def _group_norm(groups: int, channels: int) -> nn.Module:
    return nn.GroupNorm(math.gcd(groups, channels), channels)
