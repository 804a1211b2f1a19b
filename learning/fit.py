"""Checks whether a model and a data set fit together."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset, to_tensor
from coinflower.learning.gradients.clipped import clipped_gradient_sum
from coinflower.learning.models import MODELS, build_model
from coinflower.learning.own_code import blamed_on_its_author, place_of


def model_for(name: str, data: Dataset) -> nn.Module:
    """Return a model for the classes of a data set, tried on its first image.

    Raises:
        UserError: If there is no such model, or it cannot take these images.
    """
    model = build_model(name, classes=data.classes)
    first = to_tensor(data.train_inputs[:1])
    height, width = data.train_inputs.shape[1:]
    with trial(name, f"the {height} x {width} images of {data.name}"):
        clipped_gradient_sum(model, first, torch.from_numpy(data.train_targets[:1]), 1.0)
    return model


@contextlib.contextmanager
def trial(name: str, data: str) -> Iterator[None]:
    """Try a model on some data, and say in one sentence if they do not fit together.

    Args:
        name: The model's name.
        data: The data, as people call it.

    Raises:
        UserError: The model cannot take the data, or is the user's own and raised something.
    """
    try:
        yield
    except RuntimeError as error:
        if not place_of(error):  # shapes, in a layer of torch's
            raise UserError(
                f"model {name!r} cannot take {data}: choose another model or other data"
            ) from error
        with blamed_on_its_author(f"model {name!r}"):
            raise
    except Exception:
        if name in MODELS:
            raise
        with blamed_on_its_author(f"model {name!r}"):
            raise
