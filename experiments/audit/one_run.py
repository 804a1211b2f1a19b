"""A whole training with many canaries, each in or out by a coin, and guesses which were in.

After T. Steinke, M. Nasr and M. Jagielski, "Privacy auditing with one (1) training run", 2023. The
same run shows whether a ledger has charged every round of which anything left its client.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.experiments.audit.bounds import one_run_epsilon
from coinflower.experiments.audit.claims import Claim
from coinflower.experiments.audit.faults import planted
from coinflower.experiments.audit.federation import (
    Seen,
    learning_rate,
    one_thread,
    play,
    write_client,
)
from coinflower.experiments.audit.masked import fields_for, seen_in_sums
from coinflower.experiments.audit.model import COPIES, WIDE
from coinflower.experiments.audit.trials import scratch
from coinflower.learning import Randomness, SecureRandom, SeededRandom
from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import Terms

Included = npt.NDArray[np.bool_]

# Gradients are many times as long, but not so long that a server would notice a sum unclipped.
_CLIP_NORM = 0.6
_CLIENTS = 4
_CANARIES = 2 * COPIES
_GUESSES = _CANARIES // 2
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training to be audited: four clients, each with about half of a hundred canaries.

    Attributes:
        mode: Who adds noise and who sees participation.
        rounds: Rounds of the training.
        noise_multiplier: Noise over clip norm.
        delta: The δ of the claims.
        seed: Makes it repeatable; insecure.
        fault: Name of a fault to plant.
    """

    mode: Mode
    rounds: int
    noise_multiplier: float
    delta: float = 1e-8
    seed: int | None = None
    fault: str | None = None

    @property
    def terms(self) -> Terms:
        """The terms of the training."""
        p, q = self.mode.usual_p, 0.5
        return Terms(
            experiment="audit",
            mode=self.mode,
            p=p,
            q=q,
            clip_norm=_CLIP_NORM,
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            rounds_per_invitation=5,
            model=WIDE,
            classes=2,
            learning_rate=learning_rate(p, q, _CANARIES),
            **fields_for(
                self.mode,
                [len(own) for own in _shares()],
                q=q,
                cap=math.inf,
                clip_norm=_CLIP_NORM,
                noise_multiplier=self.noise_multiplier,
            ),
        )


def audit_training(training: Training, error: float) -> list[Claim]:
    """Train once and return the verdicts on the training and on its ledgers.

    Args:
        training: What to train.
        error: Probability that a true claim about the training is refuted; the verdict on the
            ledgers is exact.
    """
    included = _choose_canaries(training.seed)  # the auditor's own coins know of no fault
    with (
        planted(training.fault),
        tempfile.TemporaryDirectory(dir=scratch()) as folder,
        one_thread(),
    ):
        policies = list(_write_clients(training, included, Path(folder)))
        server_seed = None if training.seed is None else training.seed + 1
        seen = play(training.terms, policies, Path(folder) / "server", seed=server_seed)
        spent = [_spent(policy, training.delta) for policy in policies]
    right = _right_guesses(_totals(training, seen), included)
    audited = one_run_epsilon(_GUESSES, right, training.delta, _CANARIES, error)
    return [
        _claim(training, "training", max(spent), audited, 1 - error),
        _ledger_claim(training, seen, spent),
    ]


def _choose_canaries(seed: int | None) -> Included:
    randomness: Randomness = SecureRandom() if seed is None else SeededRandom(seed)
    return np.array([randomness.coin(0.5) for _ in range(_CANARIES)])


def _write_clients(training: Training, included: Included, folder: Path) -> Iterator[Path]:
    """Write clients whose canaries have a coordinate of their own each."""
    for index, own in enumerate(_shares()):
        rows = own[included[own]]
        images = np.zeros((len(rows), 1, _CANARIES), dtype=np.float32)
        images[np.arange(len(rows)), 0, rows] = 1.0
        yield write_client(
            folder / f"client-{index}",
            training.terms,
            images,
            np.zeros(len(rows), dtype=np.int64),
            declared_size=len(own),
            seed=None if training.seed is None else training.seed + 2 + index,
        )


def _shares() -> list[npt.NDArray[np.int64]]:
    return np.array_split(np.arange(_CANARIES), _CLIENTS)


def _totals(training: Training, seen: Seen) -> npt.NDArray[np.float64]:
    """Return how far each canary's coordinate moved against its gradient, as an observer sees it.

    Who trusts the server shows it more, but observers see only its sums, as everybody does in mode
    masked. Where else clients add the noise, the observer is the server and looks at each client's
    messages alone.
    """
    if seen_in_sums(training.mode):
        return np.asarray(-seen.sums.sum(axis=0, dtype=np.float64))
    totals: npt.NDArray[np.float64] = np.zeros(_CANARIES)
    for own, replies in zip(_shares(), seen.replies, strict=True):
        totals[own] = -sum((reply[own].astype(np.float64) for reply in replies.values()), 0.0)
    return totals


def _right_guesses(totals: npt.NDArray[np.float64], included: Included) -> int:
    """Guess the largest to be in and the smallest to be out, and nothing about the rest."""
    order = np.argsort(totals)
    half = _GUESSES // 2
    return int(np.sum(~included[order[:half]]) + np.sum(included[order[-half:]]))


def _spent(policy: Path, delta: float) -> float:
    with Ledger.open(policy.with_name("ledger.db"), read_only=True) as ledger:
        return ledger.spent(delta)


def _ledger_claim(training: Training, seen: Seen, spent: list[float]) -> Claim:
    """Compare what the ledgers charged with the rounds in which anything left a client.

    The claim is that of the ledger that lacks most.
    """
    cost = training.terms.round_cost(_CANARIES // _CLIENTS)
    assert cost is not None
    verdicts = []
    for heard, coins, claimed in zip(seen.heard, seen.coins, spent, strict=True):
        owed = epsilon_after([(cost, len(heard | set(coins)))], training.delta)
        holds = heard <= set(coins) and owed <= claimed * (1 + _ROUNDING)
        verdicts.append((holds, claimed - owed, claimed, owed))
    holds, _, claimed, owed = min(verdicts)
    return _claim(training, "ledger", claimed, owed, 1.0, holds=holds)


def _claim(
    training: Training,
    what: str,
    claimed: float,
    audited: float,
    confidence: float,
    *,
    holds: bool | None = None,
) -> Claim:
    return Claim(
        name=f"{training.mode}, {what} at σ = {training.noise_multiplier:g}",
        mode=str(training.mode),
        geometry="across",
        delta=training.delta,
        claimed_epsilon=claimed,
        audited_epsilon=audited,
        holds=audited <= claimed if holds is None else holds,
        trials=_CANARIES if what == "training" else training.rounds,
        confidence=confidence,
    )
