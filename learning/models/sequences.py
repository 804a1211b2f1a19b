"""Models for sequences: of words, as indices, or of vectors of numbers.

They are built of layers whose gradients are book-kept, and keep the rows of a batch apart.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from coinflower.accounting.errors import UserError
from coinflower.learning.models.options import Depth, Shape, Width, Words
from coinflower.protocol.strict import strict

_USUAL_WORDS = 10_000
_WIDER = 2  # hidden layer of a transformer's block, over its width


@strict
class Gru:
    """Gated recurrent units over the sequence; their mean state answers.

    Attributes:
        words: Size of the vocabulary; indices beyond it count as word 0.
        width: Numbers per word and state.
        depth: Layers of units.
    """

    words: Words = _USUAL_WORDS
    width: Width = 32
    depth: Depth = 1

    def build(self, outputs: int, row_shape: Shape) -> nn.Module:
        """Return the model."""
        return nn.Sequential(
            _begin("gru", self.words, self.width, row_shape),
            *(GatedUnits(self.width) for _ in range(self.depth)),
            MeanOverTime(),
            nn.Linear(self.width, outputs),
        )


@strict
class Transformer:
    """Attention over the sequence, position by position; the mean answers.

    Attributes:
        words: Size of the vocabulary; indices beyond it count as word 0.
        width: Numbers per position.
        depth: Blocks of attention.
        heads: Of the attention; the width must be a multiple.
    """

    words: Words = _USUAL_WORDS
    width: Width = 32
    depth: Depth = 2
    heads: Annotated[int, Field(ge=1, le=256)] = 4

    def build(self, outputs: int, row_shape: Shape) -> nn.Module:
        """Return the model."""
        if self.width % self.heads:
            raise UserError(
                f"width = {self.width} of model 'transformer' must be a multiple of its heads = "
                f"{self.heads}"
            )
        return nn.Sequential(
            _begin("transformer", self.words, self.width, row_shape),
            Positions(row_shape[0], self.width),
            *(AttentionBlock(self.width, self.heads) for _ in range(self.depth)),
            nn.LayerNorm(self.width),
            MeanOverTime(),
            nn.Linear(self.width, outputs),
        )


def _begin(name: str, words: int, width: int, row_shape: Shape) -> nn.Module:
    """Return what turns each position of a row into a vector of the width."""
    if len(row_shape) == 1:
        return Vocabulary(words, width)
    if len(row_shape) == 2:
        return nn.Linear(row_shape[1], width)
    raise UserError(
        f"model {name!r} takes sequences of words or of vectors, not rows of shape {row_shape}: "
        "choose another model"
    )


class Vocabulary(nn.Module):
    """A vector for each word; an index beyond the vocabulary is word 0, and no error.

    Args:
        words: Size of the vocabulary.
        width: Length of the vectors.
    """

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = words
        self.vectors = nn.Embedding(words, width)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Return vectors for indices."""
        if indices.is_floating_point():
            raise UserError("a model of words takes integers, but the rows hold other numbers")
        known = indices.where((indices >= 0) & (indices < self.words), 0)
        vectors: torch.Tensor = self.vectors(known)
        return vectors


class Positions(nn.Module):
    """Adds a learned vector for each position.

    Args:
        length: Number of positions.
        width: Length of the vectors.
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(length, width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows that know where each of their vectors stands."""
        here = torch.arange(rows.shape[1], device=rows.device).repeat(len(rows), 1)
        placed: torch.Tensor = rows + self.vectors(here)
        return placed


class GatedUnits(nn.Module):
    """One layer of gated recurrent units, as ``nn.GRU`` computes it, of Linear layers.

    Args:
        width: Numbers that go in and out at each position.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inward = nn.Linear(width, 3 * width)
        self.onward = nn.Linear(width, 3 * width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the state after each position."""
        state = torch.zeros_like(rows[:, 0])
        states = []
        for inward in self.inward(rows).unbind(1):
            to_gates, to_news = _gates_and_news(inward)
            from_gates, from_news = _gates_and_news(self.onward(state))
            reset, keep = torch.sigmoid(to_gates + from_gates).chunk(2, dim=1)
            news = torch.tanh(to_news + reset * from_news)
            state = news + keep * (state - news)
            states.append(state)
        return torch.stack(states, dim=1)


def _gates_and_news(combined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    width = combined.shape[1] // 3
    return combined[:, : 2 * width], combined[:, 2 * width :]


class AttentionBlock(nn.Module):
    """Attention and a hidden layer, each on normalised rows and added to them.

    Args:
        width: Numbers at each position.
        heads: Number of heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.asked = nn.Linear(width, 3 * width)
        self.answered = nn.Linear(width, width)
        self.before_hidden = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, _WIDER * width)
        self.out = nn.Linear(_WIDER * width, width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows in which each position knows of the others."""
        rows = rows + self._attention(self.before_attention(rows))
        found: torch.Tensor = self.out(functional.gelu(self.hidden(self.before_hidden(rows))))
        return rows + found

    def _attention(self, rows: torch.Tensor) -> torch.Tensor:
        records, length, width = rows.shape
        asked = self.asked(rows).view(records, length, 3, self.heads, width // self.heads)
        query, key, value = asked.permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(query, key, value)
        answered: torch.Tensor = self.answered(heads.transpose(1, 2).flatten(2))
        return answered


class MeanOverTime(nn.Module):
    """Returns the mean over all positions."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return one vector per record."""
        return rows.mean(1)
