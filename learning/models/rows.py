"""Models for rows of numbers of any shape, such as those of tables."""

import itertools
import math
from typing import Literal

from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.models.options import Depth, Shape, Widths
from coinflower.protocol.strict import strict

_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
_USUAL_WIDTH, _USUAL_DEPTH = 64, 2


@strict
class LinearModel:
    """A single layer: logistic or linear regression."""

    def build(self, outputs: int, row_shape: Shape) -> nn.Module:
        """Return the model."""
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(row_shape), outputs))


@strict
class Mlp:
    """Hidden layers between the row and the answer.

    Attributes:
        widths: Widths of the hidden layers.
        depth: Number of hidden layers; may be left out where each has its width.
        activation: What follows each of them.
    """

    widths: Widths | None = None
    depth: Depth | None = None
    activation: Literal["relu", "tanh", "gelu"] = "tanh"

    def build(self, outputs: int, row_shape: Shape) -> nn.Module:
        """Return the model."""
        sizes = [math.prod(row_shape), *self._hidden()]
        layers: list[nn.Module] = [nn.Flatten()]
        for size, width in itertools.pairwise(sizes):
            layers += [nn.Linear(size, width), _ACTIVATIONS[self.activation]()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))

    def _hidden(self) -> tuple[int, ...]:
        widths = self.widths or (_USUAL_WIDTH,)
        if len(widths) == 1:
            return widths * (self.depth or (_USUAL_DEPTH if self.widths is None else 1))
        if self.depth not in (None, len(widths)):
            raise UserError(
                f"depth = {self.depth} of model 'mlp' does not go with {len(widths)} widths: leave "
                "out one of them, or state a single width"
            )
        return widths
