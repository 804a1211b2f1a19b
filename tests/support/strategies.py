"""What the tests of the strategy share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from coinflower.learning import build_model, clipped_gradient_sum, load_parameters, to_tensor
from coinflower.protocol import messages

Make = Callable[..., Any]
EVERYTHING: dict[str, Any] = {"p": 1.0, "q": 1.0, "clip_norm": math.inf}


def round_of(message: Message) -> int:
    return int(str(message.content.config_records[messages.ASK].get("round", 0)))


def reply_with(message: Message, **fields: Any) -> Message:
    return Message(RecordDict({messages.ANSWER: ConfigRecord(fields)}), reply_to=message)


def coins_of(fed: Any, node: int) -> dict[int, bool]:
    return {entry.round: entry.coin for entry in fed.entries(node, "charge")}


def rounds_sent(fed: Any, kind: str) -> dict[int, list[int]]:
    """The rounds that each client was asked about, in order."""
    asked: dict[int, list[int]] = {node: [] for node in fed.nodes}
    for event in fed.grid.sent(kind):
        asked[event.node] += range(event.round, event.round + max(1, event.count))
    return asked


def central_descent(fed: Any, rounds: int, total: float) -> np.ndarray:
    """Gradient descent with momentum on the data of all clients together."""
    parts = [fed.data(node) for node in fed.nodes]
    inputs = to_tensor(np.concatenate([part.inputs for part in parts]))
    targets = torch.from_numpy(np.concatenate([part.targets for part in parts]))
    weights = fed.initial().astype(np.float64)
    velocity = np.zeros_like(weights)
    model = build_model("digits", classes=10)
    for _ in range(rounds):
        load_parameters(model, weights.astype(np.float32))
        gradient = clipped_gradient_sum(model, inputs, targets, math.inf).numpy() / total
        velocity = fed.terms.momentum * velocity + gradient
        weights = weights - fed.terms.learning_rate * velocity
    return np.asarray(weights)
