"""Models by name, and a model's parameters as one flat vector."""

import difflib
import itertools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.per_record import trainable_parameters
from coinflower.learning.own_code import blamed_on_its_author, own_function


def paper_cnn(classes: int) -> nn.Module:
    """Return the convolutional network of the paper, for 28 x 28 images of one channel.

    With 62 classes it has 156,526 parameters.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Flatten(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, classes),
    )


def digits_model(classes: int) -> nn.Module:
    """Return a small network for 8 x 8 images of one channel that learns well under noise."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )


MODELS: dict[str, Callable[[int], nn.Module]] = {"paper-cnn": paper_cnn, "digits": digits_model}


def build_model(name: str, *, classes: int, seed: int = 0) -> nn.Module:
    """Return a model that maps a batch of images to one row of logits per image.

    The initial weights depend on the seed alone and are public. Torch's global random state is
    left as it was.

    Args:
        name: ``paper-cnn``, ``digits``, or ``package.module:function`` for your own model,
            where ``function(classes)`` returns an ``nn.Module``.
        classes: Number of classes, at least 2.
        seed: Seed of the initial weights.

    Raises:
        ValueError: If the name is unknown or does not lead to a model, or classes is below 2.
    """
    if classes < 2:
        raise UserError(f"classes = {classes} must be at least 2")
    build = MODELS[name] if name in MODELS else _own_model(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with blamed_on_its_author(f"model {name!r}"):
            model = build(classes)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"model {name!r} returned {type(model).__name__}; it must return a torch nn.Module"
        )
    return model


def _own_model(name: str) -> Callable[[int], nn.Module]:
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        choices = ", ".join(MODELS)
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(
            f"model {name!r} is unknown{hint}: choose one of {choices}, or package.module:function"
        )
    return own_function(f"model {name!r}", name, "one that takes the number of classes")


def count_parameters(model: nn.Module) -> int:
    """Return how many numbers the model learns."""
    return sum(parameter.numel() for parameter in trainable_parameters(model))


def flatten_parameters(model: nn.Module) -> torch.Tensor:
    """Return a float32 copy of the learned parameters as one vector."""
    flat = [parameter.detach().reshape(-1) for parameter in trainable_parameters(model)]
    return torch.cat(flat).to(torch.float32, copy=True)


def load_parameters(model: nn.Module, flat: torch.Tensor | NDArray[np.float32]) -> None:
    """Write a flat vector into the learned parameters, in the order of ``flatten_parameters``.

    Raises:
        ValueError: If the vector does not have exactly one number per learned parameter.
    """
    values = torch.as_tensor(flat)
    parameters = trainable_parameters(model)
    if values.shape != (count_parameters(model),):
        raise UserError(
            f"the parameter vector has shape {tuple(values.shape)}, but the model needs "
            f"({count_parameters(model)},): use the vector of the same model"
        )
    ends = itertools.accumulate(parameter.numel() for parameter in parameters)
    with torch.no_grad():
        for end, parameter in zip(ends, parameters, strict=True):
            parameter.copy_(values[end - parameter.numel() : end].view(parameter.shape))
