"""Faults that an audit must find, planted by substitution for as long as a block lasts.

Nothing of this is reachable from client or server: here their functions are replaced from outside,
in the audit's own processes, by ones that do what a defect would do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

import coinflower.client.gradient_sums
import coinflower.client.masked
import coinflower.masking.tickets
import coinflower.server.aggregation
from coinflower.accounting.errors import UserError
from coinflower.client.participant import Participant
from coinflower.learning import FixedPoint, SecureRandom, SeededRandom
from coinflower.notary.record import Record

_LESS_NOISE = 0.8
_LARGER_COIN = 1.6
_UNCHARGED_EVERY = 10
_SOURCES = (SecureRandom, SeededRandom)

Plant = Callable[[ExitStack], None]


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Run the block with a fault in the code; None plants nothing.

    Raises:
        ValueError: There is no fault of that name.
    """
    if name is not None and name not in FAULTS:
        raise UserError(f"fault = {name!r} is unknown; choose one of {', '.join(FAULTS)}.")
    with ExitStack() as stack:
        if name is not None:
            FAULTS[name](stack)
        yield


def _replace(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    stack.enter_context(mock.patch.object(owner, name, make(getattr(owner, name))))


def _less_noise(stack: ExitStack) -> None:
    for source in _SOURCES:
        _replace(
            stack,
            source,
            "normal",
            lambda true: lambda self, size, std: true(self, size, _LESS_NOISE * std),
        )


def _no_clipping(stack: ExitStack) -> None:
    _replace(
        stack,
        coinflower.client.gradient_sums,
        "clipped_gradient_sum",
        lambda true: (
            lambda model, inputs, targets, _, **more: true(model, inputs, targets, math.inf, **more)
        ),
    )


def _clipping_rows(stack: ExitStack) -> None:
    _replace(
        stack,
        coinflower.client.gradient_sums,
        "clipped_gradient_sum",
        lambda true: lambda *given, **more: true(*given, **{**more, "persons": None}),
    )


def _no_cap(stack: ExitStack) -> None:
    _replace(
        stack, coinflower.client.gradient_sums, "capped_sum", lambda _: lambda total, _cap: total
    )
    # Otherwise the server would drop sums that are too long.
    _replace(
        stack,
        coinflower.server.aggregation,
        "largest_norm",
        lambda true: lambda terms, *args: true(replace(terms, cap=math.inf), *args),
    )


def _larger_coin(stack: ExitStack) -> None:
    for source in _SOURCES:
        _replace(
            stack,
            source,
            "coin",
            lambda true: lambda self, p: true(self, min(1.0, _LARGER_COIN * p)),
        )


def _telling_coin(stack: ExitStack) -> None:
    def opening(true: Any) -> Any:
        def open_participant(policy: Any) -> Participant:
            participant: Participant = true(policy)
            source = participant._randomness
            share = len(participant._gradients._units) / participant.policy.declared_size
            fair = source.coin
            stack.enter_context(mock.patch.object(source, "coin", lambda p: fair(share * p)))
            return participant

        return open_participant

    _replace(stack, Participant, "open", opening)


def _fixed_size(stack: ExitStack) -> None:
    generator = np.random.default_rng()

    def sample(_: object, n: int, q: float) -> Any:
        return np.sort(generator.choice(n, round(q * n), replace=False)).astype(np.int64)

    for source in _SOURCES:
        _replace(stack, source, "sample_indices", lambda _: sample)


def _shared_noise(stack: ExitStack) -> None:
    generator = np.random.default_rng(0)  # the same in every process

    def normal(_: object, size: int, std: float) -> Any:
        return std * generator.standard_normal(size)

    for source in _SOURCES:
        _replace(stack, source, "normal", lambda _: normal)


def _missing_charge(stack: ExitStack) -> None:
    def coins(true: Any) -> Any:
        return lambda self, terms, rounds: [
            self._public_coin(terms, round_)
            if round_ % _UNCHARGED_EVERY == 0
            else true(self, terms, [round_])[0]
            for round_ in rounds
        ]

    def claim(true: Any) -> Any:
        return lambda self, terms, round_: (
            round_ % _UNCHARGED_EVERY == 0 or true(self, terms, round_)
        )

    _replace(stack, Participant, "_coins", coins)
    _replace(stack, Participant, "_claim", claim)


def _float_sums(stack: ExitStack) -> None:
    def add(_: Any) -> Any:
        def added(self: FixedPoint, vector: Any) -> None:
            self.counts = FixedPoint.of(self.rounded + vector, self.cell).counts

        return added

    _replace(stack, FixedPoint, "add", add)


def _reused_mask(stack: ExitStack) -> None:
    tickets = coinflower.masking.tickets
    seeds: dict[bytes, bytes] = {}

    def write(true: Any) -> Any:
        def written(occasion: Any, key: Any, token: bytes) -> Any:
            owner = tickets.owner_name(key.public_key())
            seed = seeds.setdefault(owner, tickets.fresh_seed())
            with mock.patch.object(tickets, "fresh_seed", return_value=seed):
                return true(occasion, key, token)

        return written

    _replace(stack, coinflower.client.masked, "write_ticket", write)
    # Otherwise the notary would refuse the second round.
    _replace(stack, Record, "_knows_seed", lambda _: lambda *_: False)


def _paper_noise(stack: ExitStack) -> None:
    from coinflower.experiments.audit import claims as audit_claims
    from coinflower.experiments.audit import settings as audit_settings

    _replace(stack, audit_claims, "claimed_scheme", lambda _: audit_settings.paper_scheme)


FAULTS: dict[str, Plant] = {
    "less-noise": _less_noise,
    "no-clipping": _no_clipping,
    "clipping-rows": _clipping_rows,
    "no-cap": _no_cap,
    "larger-coin": _larger_coin,
    "telling-coin": _telling_coin,
    "fixed-size": _fixed_size,
    "shared-noise": _shared_noise,
    "missing-charge": _missing_charge,
    "float-sums": _float_sums,
    "reused-mask": _reused_mask,
    "paper-noise": _paper_noise,
}
"""Noise too small by a fifth; no clipping; a person's rows clipped one by one; a cap that nobody
applies; a coin that says yes 1.6 times as often; one that says yes more often the more data there
are; samples of fixed size; noise seeded alike in every process; one round in ten uncharged; a sum
in single precision; one mask for all rounds of a client; ε as the source paper has it, hence its
noise."""
