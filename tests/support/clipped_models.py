"""Models whose gradients tests clip, and independent sums to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.nn import functional

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
}


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
    total: torch.Tensor = (rows * (clip_norm / rows.norm(dim=1)).clamp(max=1)[:, None]).sum(0)
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
