"""What mode masked costs a client, a round and a notary, beside mode untrusted.

A client's round is that of the shipped participant with policy, data and ledger in files: the
paper's network, a batch of 70. The notary opens a round of a thousand clients, signatures, seals
and its record included. Whole rounds go through the command line.

Run with ``python -m tools.bench.masked``.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec

from coinflower.accounting.ledger.echo import NO_TOKEN
from coinflower.client.participant import Participant
from coinflower.experiments.audit.federation import write_client
from coinflower.experiments.audit.masked import fields_for, make_notary, vouched
from coinflower.learning import count_parameters, model_of
from coinflower.masking.tickets import Occasion, write_ticket
from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import Terms
from tools.bench.rounds import seconds_per_round
from tools.bench.simulator import take_turns

MOST_CLIENT_CPU = 1.15
MOST_MESSAGE = 1.1
MOST_ROUND = 1.5
MOST_NOTARY_SECONDS = 2.0
SAMPLES, RATE, CLASSES = 70, 1.0, 62  # no luck of the draw in a batch
CLIENTS = 1000
_REPETITIONS = 40
_NODES, _ROUNDS = 10, 20


def run() -> list[dict[str, Any]]:
    """Measure everything; see ``tools.bench.table`` for what the rows mean."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            cpu, message = _client(Path(folder))
            notary = _notary(Path(folder))
    finally:
        torch.set_num_threads(threads)
    seconds = {
        mode: seconds_per_round(clients=_NODES, rounds=_ROUNDS, extra=("--mode", str(mode)))
        for mode in (Mode.UNTRUSTED, Mode.MASKED)
    }
    rounds = seconds[Mode.MASKED] / seconds[Mode.UNTRUSTED]
    return [
        _at_most("a client's CPU, masked / untrusted, paper-cnn", cpu, MOST_CLIENT_CPU),
        _at_most("masked message / float32 gradient, paper-cnn", message, MOST_MESSAGE),
        _at_most(f"round of {_NODES} nodes, time, masked / untrusted", rounds, MOST_ROUND),
        _at_most(f"notary, {CLIENTS:,} masks of paper-cnn, CPU s", notary, MOST_NOTARY_SECONDS),
    ]


def _at_most(measure: str, value: float, limit: float) -> dict[str, Any]:
    return {"measure": measure, "value": value, "limit": limit, "met": value <= limit}


def _terms(mode: Mode, clients: int) -> Terms:
    rules = {"q": RATE, "clip_norm": 1.0, "noise_multiplier": 1.5}
    return Terms(
        experiment="bench",
        mode=mode,
        p=0.5,
        rounds=1000,
        model="paper-cnn",
        classes=CLASSES,
        **rules,  # type: ignore[arg-type]
        **fields_for(mode, [SAMPLES] * clients, cap=float("inf"), **rules),
    )


def _client(folder: Path) -> tuple[float, float]:
    """Return CPU time and size of a client's answer, over untrusted and over a gradient."""
    generator = np.random.default_rng(1)
    images = generator.random((SAMPLES, 28, 28)).astype(np.float32)
    classes = generator.integers(0, CLASSES, SAMPLES)
    tasks: dict[str, Callable[[], Any]] = {}
    for mode in (Mode.UNTRUSTED, Mode.MASKED):
        terms = _terms(mode, 10)
        policy = write_client(folder / mode, terms, images, classes, declared_size=SAMPLES)
        tasks[mode] = _rounds_of(Participant.open(policy), terms)
    numbers, ticket = tasks[Mode.MASKED]()
    seconds = take_turns(tasks, _REPETITIONS)
    size = 4 * count_parameters(model_of(_terms(Mode.MASKED, 10)))
    return seconds[Mode.MASKED] / seconds[Mode.UNTRUSTED], (len(numbers) + len(ticket)) / size


def _rounds_of(participant: Participant, terms: Terms) -> Callable[[], Any]:
    """Return what plays a client's next round."""
    participant.enrol(terms)
    weights = np.zeros(count_parameters(model_of(terms)), dtype="<f4").tobytes()
    rounds = itertools.count(1)
    if not terms.mode.masks_sums:
        return lambda: participant.gradient_sum(terms, next(rounds), weights)
    voucher = vouched(participant, terms)
    return lambda: participant.masked_sum(terms, next(rounds), weights, voucher)


def _notary(folder: Path) -> float:
    """Return the CPU seconds that a notary needs to open a round of many clients."""
    keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(CLIENTS)]
    notary = make_notary(folder / "notary", [key.public_key() for key in keys])
    terms = _terms(Mode.MASKED, CLIENTS)
    occasion = Occasion.of(terms, 1)
    tickets = b"".join(write_ticket(occasion, key, NO_TOKEN)[0] for key in keys)
    length = count_parameters(model_of(terms))
    started = time.process_time()
    notary.open(terms, 1, length, tickets)
    return time.process_time() - started


if __name__ == "__main__":
    for row in run():
        print(f"{row['measure']:<60}{row['value']:>8.3f}{row['limit']:>8.2f}")
