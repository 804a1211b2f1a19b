"""Whether a model and a data set go together."""

import torch
from torch import nn

from coinflower.learning.data.dataset import Dataset, to_tensor
from coinflower.learning.gradients.clipped import clipped_gradient_sum
from coinflower.learning.models import build_model


def model_for(name: str, data: Dataset) -> nn.Module:
    """Returns a model for the classes of a data set, tried on its first image.

    Raises:
        ValueError: If there is no such model, or it cannot take these images.
    """
    model = build_model(name, classes=data.classes)
    first = to_tensor(data.train_inputs[:1])
    try:
        clipped_gradient_sum(model, first, torch.from_numpy(data.train_targets[:1]), 1.0)
    except RuntimeError:
        height, width = data.train_inputs.shape[1:]
        raise ValueError(
            f"model {name!r} cannot take the {height} x {width} images of {data.name}: choose "
            "another model or other data"
        ) from None
    return model
