"""Models whose gradients tests clip, and independent sums to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import nn
from torch.nn import functional

from coinflower.learning import build_model
from coinflower.learning.vision import torchvision_models

IMAGE = (4, 9, 9)


def conv_model(**options: Any) -> nn.Module:
    convolution = nn.Conv2d(4, 6, **options)
    features = convolution(torch.zeros(1, *IMAGE)).numel()
    return nn.Sequential(convolution, nn.Tanh(), nn.Flatten(), nn.Linear(features, 3))


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(9, 7)
        self.second = nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu_(self.first(x))).flatten(1, -2).mean(1)
        return out


class UsesView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 6, 3)
        self.last = nn.Linear(6 * 49, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.relu(self.convolution(x)).view(x.shape[0], -1))
        return out


class CallsTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(9, 9)
        self.last = nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.mean((1, 2))
        out: torch.Tensor = self.last(torch.tanh(self.shared(torch.tanh(self.shared(x)))))
        return out


class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(9, 9)
        self.two = nn.Linear(9, 9)
        self.two.weight = self.one.weight
        self.last = nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(self.two(torch.tanh(self.one(x.mean((1, 2)))))))
        return out


class OwnParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(9))
        self.last = nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(x.mean((1, 2)) + self.shift))
        return out


class UnusedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.last = nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(x.mean((1, 2)))
        return out


def frozen_weight() -> nn.Module:
    model = conv_model(kernel_size=3)
    assert isinstance(model, nn.Sequential)
    model[0].weight.requires_grad_(False)
    model[3].bias.requires_grad_(False)
    return model


def in_place() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 6, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(6 * 49, 3)
    )


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 49, 3)
    )


def frozen_norm() -> nn.Module:
    """BatchNorm that is a constant scale and shift, as in a pretrained part."""
    norm = nn.BatchNorm2d(6).requires_grad_(False).eval()
    norm.running_mean = torch.randn(6)
    return nn.Sequential(
        nn.Conv2d(4, 6, 3), norm, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(6 * 49, 3)
    )


class Reshaped(nn.Module):
    """Takes the images as rows of another shape.

    Args:
        shape: Of a row.
        layers: What it goes through; the mean over all but records answers, or its first numbers.
    """

    def __init__(self, shape: tuple[int, ...], *layers: nn.Module, words: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.words = words
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(len(x), *self.shape)
        if self.words:
            x = x.nan_to_num(0, 0, 0).mul(10).long().remainder(self.words)
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return x.flatten(1)[:, :3] if x.dim() == 2 else x.mean(tuple(range(1, x.dim() - 1)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = DPMultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


class Twice(nn.Module):
    """Calls a layer on rows of two lengths and adds up.

    Args:
        layer: The layer.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.layer(x), self.layer(x[:, :, 2:])], dim=2).mT


def residual() -> nn.Module:
    blocks = torchvision_models().resnet
    return nn.Sequential(
        blocks.BasicBlock(4, 4, norm_layer=lambda channels: nn.GroupNorm(2, channels)),
        nn.AvgPool2d(9),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: conv_model(kernel_size=3),
    "rectangular": lambda: conv_model(kernel_size=(3, 2), stride=(1, 2), padding=(0, 1)),
    "strided and padded": lambda: conv_model(kernel_size=4, stride=2, padding=3),
    "dilated": lambda: conv_model(kernel_size=3, dilation=2, padding=1),
    "grouped": lambda: conv_model(kernel_size=3, groups=2, stride=2),
    "same padding": lambda: conv_model(kernel_size=4, padding="same"),
    "valid padding": lambda: conv_model(kernel_size=4, padding="valid"),
    "reflected": lambda: conv_model(kernel_size=3, padding=1, padding_mode="reflect"),
    "circular same": lambda: conv_model(kernel_size=4, padding="same", padding_mode="circular"),
    "without bias": lambda: conv_model(kernel_size=3, bias=False),
    "sequence": Sequence,
    "view": UsesView,
    "called twice": CallsTwice,
    "tied weights": TiedWeights,
    "own parameter": OwnParameter,
    "unused layer": UnusedLayer,
    "frozen": frozen_weight,
    "in place": in_place,
    "group norm": normalised,
    "frozen norm": frozen_norm,
    "residual": residual,
    "one dimension": lambda: Reshaped(
        (4, 81), nn.Conv1d(4, 6, 5, stride=3, padding=2), nn.Flatten(), nn.Linear(6 * 27, 3)
    ),
    "three dimensions": lambda: Reshaped(
        (2, 2, 9, 9),
        nn.Conv3d(2, 5, (2, 3, 3), dilation=(1, 1, 2)),
        nn.Flatten(),
        nn.Linear(175, 3),
    ),
    "grouped twice": lambda: Reshaped(
        (4, 81), Twice(nn.Conv1d(4, 6, 5, groups=2)), nn.Tanh(), nn.Linear(6, 3)
    ),
    "few positions": lambda: Reshaped((4, 81), nn.Linear(81, 50), nn.Tanh(), nn.Linear(50, 3)),
    "few pixels": lambda: conv_model(kernel_size=7),
    "many ranks": lambda: Reshaped((2, 2, 9, 9), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3)),
    "layer norm": lambda: Reshaped(
        (36, 9), nn.Linear(9, 8), nn.LayerNorm(8), nn.Tanh(), nn.LayerNorm((36, 8)), nn.Linear(8, 3)
    ),
    "words": lambda: Reshaped(
        (324,), nn.Embedding(11, 6, padding_idx=3), nn.Tanh(), nn.Linear(6, 3), words=11
    ),
    "gru": lambda: Reshaped((36, 9), *sequence_model("gru", width=8, depth=2)),
    "transformer": lambda: Reshaped((36, 9), *sequence_model("transformer", width=8)),
    "recurrent": lambda: Reshaped(
        (36, 9), DPLSTM(9, 6, batch_first=True), nn.Tanh(), nn.Linear(6, 3)
    ),
    "attention": lambda: Reshaped((54, 6), Attention(), nn.Tanh(), nn.Linear(6, 3)),
    "own activation": lambda: Reshaped((36, 9), nn.Linear(9, 7), nn.PReLU(36), nn.Linear(7, 3)),
}


def sequence_model(name: str, **options: Any) -> Iterator[nn.Module]:
    model = build_model(name, classes=3, row_shape=(36, 9), options={**options})
    yield from model.children()


def sample_gradients(
    model: nn.Module, inputs: torch.Tensor | tuple[torch.Tensor, ...], targets: torch.Tensor
) -> torch.Tensor:
    arrays = inputs if isinstance(inputs, tuple) else (inputs,)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = []
    for i in range(len(targets)):
        one = (array[i : i + 1] for array in arrays)
        loss = functional.cross_entropy(model(*one), targets[i : i + 1])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    torch.zeros(parameter.numel()) if gradient is None else gradient.flatten()
                    for parameter, gradient in zip(parameters, gradients, strict=True)
                ]
            )
        )
    return torch.stack(rows)


def loop_sum(
    model: nn.Module,
    inputs: torch.Tensor | tuple[torch.Tensor, ...],
    targets: torch.Tensor,
    clip_norm: float,
) -> torch.Tensor:
    rows = sample_gradients(model, inputs, targets)
    return _clipped_total(rows, clip_norm)


def _clipped_total(rows: torch.Tensor, clip_norm: float) -> torch.Tensor:
    total: torch.Tensor = (
        rows * (clip_norm / rows.double().norm(dim=1)).clamp(max=1)[:, None].float()
    ).sum(0)
    return total


def opacus_sum(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, clip_norm: float
) -> torch.Tensor:
    wrapped = GradSampleModule(model, loss_reduction="sum")
    try:
        loss = functional.cross_entropy(wrapped(inputs), targets, reduction="sum")
        torch.autograd.backward([loss])
        rows = torch.cat([getattr(p, "grad_sample").flatten(1) for p in model.parameters()], dim=1)  # noqa: B009
        return _clipped_total(rows, clip_norm)
    finally:
        wrapped.to_standard_module()
        for parameter in model.parameters():
            parameter.grad = None


def batch(samples: int, shape: tuple[int, ...] = IMAGE) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(samples, *shape), torch.randint(0, 3, (samples,))
