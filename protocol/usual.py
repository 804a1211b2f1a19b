"""What an experiment has if nobody chooses."""

from __future__ import annotations

_USUAL_MODELS = {(1, 8, 8): "digits", (1, 28, 28): "tanh-cnn"}


def usual_rounds_per_invitation(rounds: int) -> int:
    """Return how many coins an invitation asks for if nobody says."""
    return min(10, rounds)


def usual_model(row_shape: tuple[int, ...], *, words: bool = False) -> str:
    """Return the model of whoever does not choose one.

    Args:
        row_shape: Shape of a record.
        words: Whether it holds indices, such as those of words.
    """
    if row_shape in _USUAL_MODELS:
        return _USUAL_MODELS[row_shape]
    if len(row_shape) == 3:
        return "resnet18-gn"
    return "gru" if words and len(row_shape) == 1 else "mlp"
