"""Checks whether a model and a data set fit together."""

import contextlib
from collections.abc import Iterator

from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.data.dataset import Dataset
from coinflower.learning.gradients.clipped import clipped_gradient_sum
from coinflower.learning.models import MODELS, build_model
from coinflower.learning.own_code import blamed_on_its_author, place_of


def model_for(name: str, data: Dataset) -> nn.Module:
    """Return a model for the classes of a data set, tried on a blank row.

    Raises:
        UserError: If there is no such model, or it cannot take these rows.
    """
    model = build_model(name, classes=data.classes)
    blank, target = data.train.blank_row()
    described = " with ".join(map(_described, data.train.row_shapes))
    with trial(name, f"the {described} of {data.name}"):
        clipped_gradient_sum(model, blank, target, 1.0)
    return model


def _described(row: tuple[int, ...]) -> str:
    """Return what people call rows of this shape."""
    if len(row) == 3:
        return f"{' x '.join(map(str, row[1:] if row[0] == 1 else row))} images"
    return f"rows of {' x '.join(map(str, row))} values"


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
    except (RuntimeError, TypeError) as error:
        if not place_of(error):  # shapes, in a layer of torch's, or the number of arrays
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
