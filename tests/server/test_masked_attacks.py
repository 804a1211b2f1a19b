"""What servers, clients and colluders that lie together can make of what a client sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Message

from coinflower.learning import Update
from coinflower.masking.masks import lifted, sum_of_masks
from coinflower.masking.tickets import Occasion, Ticket
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from tests.support.masked_rounds import FOUR, opened
from tests.support.memory_grid import NOTARY_NODE, Deliver, kind_of
from tests.support.notaries import KEY
from tests.support.participants import variance_p_value

Make = Callable[..., Any]
NOISE_STD = 1.5
NO_DATA = {"q": 1e-9, "p": 1.0}
"""Samples are empty: sums are noise alone."""


def numbers_of(answer: Any) -> np.ndarray:
    return np.frombuffer(bytes(answer[messages.SUM]), "<u4")


def steps(fed: Any, **options: Any) -> np.ndarray:
    """The steps of all rounds, in clip norms."""
    fed.update = Update(learning_rate=1.0)
    path = [fed.initial()]
    fed.run(evaluate=lambda _, weights: path.append(weights), **options)
    return np.diff(np.stack(path), axis=0) * fed.terms.q * 12 * len(fed.nodes)


def test_a_server_that_sends_everybody_another_model_gets_one_sum_with_all_noise(
    federation: Make,
) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=3, **NO_DATA)
    again: list[Message] = []

    def interfere(message: Message, deliver: Deliver) -> Message:
        if kind_of(message) != "gradient":
            return deliver()
        node = message.metadata.dst_node_id
        model = fed.initial() * (node - 999)
        message.content[messages.ASK][messages.WEIGHTS] = messages.vector_to_bytes(model)
        reply = deliver()
        message.content[messages.ASK][messages.WEIGHTS] = messages.vector_to_bytes(-model)
        again.append(deliver())
        return reply

    fed.grid.interfere = interfere
    for step in steps(fed):
        assert variance_p_value(step, NOISE_STD * np.sqrt(4 / 3)) > 1e-7
    assert opened(fed) == 3
    assert len(again) == 12
    assert all(reply.has_error() for reply in again)
    assert all(len(fed.entries(node, "charge")) == 3 for node in fed.nodes)


def test_an_answer_that_comes_twice_counts_once(federation: Make) -> None:
    fed = federation(Mode.MASKED, sizes=FOUR, rounds=3, **NO_DATA)
    fed.grid.copies = 2
    for step in steps(fed):
        assert variance_p_value(step, NOISE_STD * np.sqrt(4 / 3)) > 1e-7
    assert opened(fed) == 3


def test_colluders_that_take_off_what_they_sent_leave_the_noise_that_is_charged(
    federation: Make,
) -> None:
    """Five clients, one of them drops out; two of the four that are opened tell the server all."""
    fed = federation(Mode.MASKED, sizes=(*FOUR, 12), threshold=4, colluders=2, rounds=1, **NO_DATA)
    answers: dict[int, Any] = {}

    def interfere(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver()
        if kind_of(message) == "gradient":
            answers[message.metadata.dst_node_id] = reply.content[messages.ANSWER]
            return None
        return reply

    fed.grid.interfere = interfere
    fed.run(timeout=0.1)
    occasion, length = Occasion.of(fed.terms, 1), len(fed.initial())
    named = sorted(answers)[:4]
    tickets = b"".join(bytes(answers[node][messages.TICKET]) for node in named)
    masks = fed.grid.notaries[NOTARY_NODE].open(fed.terms, 1, length, tickets)
    total = np.sum([numbers_of(answers[node]) for node in named], axis=0, dtype=np.uint32)
    total -= np.frombuffer(masks, "<u4")
    for node in named[:2]:
        ticket = Ticket.from_bytes(bytes(answers[node][messages.TICKET]), occasion)
        total -= numbers_of(answers[node])
        total += sum_of_masks([ticket.seed(occasion, KEY)], length, 32)
    left = (lifted(total) * fed.terms.noise_shares.cell).astype(np.float32)
    assert variance_p_value(left, NOISE_STD) > 1e-7
    assert variance_p_value(left, NOISE_STD * np.sqrt(3 / 2)) < 1e-7
    assert variance_p_value(left, NOISE_STD * np.sqrt(1 / 2)) < 1e-7
