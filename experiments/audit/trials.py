"""Trials: runs of the shipped code on one of both data sets, and what an observer sees of them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coinflower.client.participant import Participant
from coinflower.experiments.audit.bounds import Coins
from coinflower.experiments.audit.colluders import Colluder, conspiracy
from coinflower.experiments.audit.faults import planted
from coinflower.experiments.audit.federation import one_thread, play, write_client
from coinflower.experiments.audit.masked import (
    COLLUDERS,
    HELPERS,
    MaskedColluder,
    differences,
    seen_in_sums,
)
from coinflower.experiments.audit.settings import Array, Setting
from coinflower.learning import count_parameters, model_of
from coinflower.protocol.messages import vector_to_bytes
from coinflower.protocol.terms import Terms

Flip = Callable[[Terms, Sequence[int]], list[bool]]

_FLIPS_AT_ONCE = 1000
# Charges are synced to disk. An audit's ledgers are thrown away, so they may live in memory.
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run, to be made in any process.

    Attributes:
        setting: What is run.
        with_canary: On which of both data sets.
        seed: Makes it repeatable; insecure.
        fault: Name of a fault to plant; None for the code as shipped.
    """

    setting: Setting
    with_canary: bool
    seed: int | None = None
    fault: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Outputs:
    """What was seen, in clip norms.

    Attributes:
        heads: Participating rounds x copies x 2.
        tails: The others; none where a client then keeps silent.
        coins: Coins that were counted; None if a client always takes part.
        cpu_seconds: What the run took.
    """

    heads: Array
    tails: Array
    coins: Coins | None
    cpu_seconds: float = 0.0

    @property
    def trials(self) -> int:
        """How many copies of a client were seen."""
        return (self.heads.size + self.tails.size) // 2


def scratch() -> Path | None:
    """Return where ledgers of an audit lie: in memory if the system has such a place."""
    return _MEMORY if _MEMORY.is_dir() else None


def run_job(job: Job) -> Outputs:
    """Run the shipped code and return what there was to be seen."""
    with (
        planted(job.fault),
        tempfile.TemporaryDirectory(dir=scratch()) as folder,
        one_thread(),
    ):
        started = time.process_time()
        outputs = _way_to_see(job.setting)(job, Path(folder))
        return replace(outputs, cpu_seconds=time.process_time() - started)


def _way_to_see(setting: Setting) -> Callable[[Job, Path], Outputs]:
    if setting.under_masks:
        return _masked_messages
    return _released_sums if seen_in_sums(setting.mode) else _client_messages


def _masked_messages(job: Job, folder: Path) -> Outputs:
    """Return what two masked messages of a client have to do with each other; nobody opens them."""
    terms = job.setting.terms(job.setting.rounds)
    participant = _enrolled(_write(job, folder, terms), terms)
    outputs = job.setting.outputs(differences(participant, terms, _zeros(terms)))
    return Outputs(heads=outputs, tails=outputs[:0], coins=None)


def _released_sums(job: Job, folder: Path) -> Outputs:
    """Whole federation: what the server publishes after each round."""
    setting = job.setting
    terms = setting.terms(setting.rounds)
    server_seed = None if job.seed is None else job.seed + 1
    colluders: Sequence[Colluder] = conspiracy(terms.clip_norm) if setting.colluders else ()
    helpers: list[Path] = []
    if setting.mode.masks_sums:
        helpers = [_write_helper(job, folder / f"helper-{one}", terms) for one in range(HELPERS)]
        colluders = [MaskedColluder(terms) for _ in range(COLLUDERS)]
    seen = play(
        terms,
        [_write(job, folder / "client", terms), *helpers],
        folder / "server",
        colluders=colluders,
        seed=server_seed,
    )
    outputs = setting.outputs(seen.sums)
    if setting.p == 1:
        return Outputs(heads=outputs, tails=outputs[:0], coins=None)
    # A round that was not charged has no coin to be known by: the verdict on ledgers tells of it.
    coins = [seen.coins[0].get(round_) for round_ in range(1, setting.rounds + 1)]
    known = np.array([coin is not None for coin in coins])
    joined = np.array([bool(coin) for coin in coins])
    terms = setting.terms(setting.flips)
    participant = _enrolled(_write(job, folder / "flipper", terms), terms)
    flips = _flip(terms, _way_to_coins(participant, terms))
    return Outputs(
        heads=outputs[known & joined], tails=outputs[known & ~joined], coins=_count(flips)
    )


def _client_messages(job: Job, folder: Path) -> Outputs:
    """Return what a client alone sends to a server that sees everything."""
    setting = job.setting
    if setting.p == 1:
        terms = setting.terms(setting.rounds)
        participant = _enrolled(_write(job, folder, terms), terms)
        vectors = _ask(participant, terms, range(1, setting.rounds + 1))
        outputs = setting.outputs(vectors)
        return Outputs(heads=outputs, tails=outputs[:0], coins=None)
    terms = setting.terms(setting.flips)
    participant = _enrolled(_write(job, folder, terms), terms)
    coins = _flip(terms, _way_to_coins(participant, terms))
    heads = np.flatnonzero(coins)[: setting.rounds] + 1
    tails = np.flatnonzero(~coins)[: setting.rounds if terms.mode.answers_always else 0] + 1
    return Outputs(
        heads=setting.outputs(_ask(participant, terms, heads.tolist())),
        tails=setting.outputs(_ask(participant, terms, tails.tolist())),
        coins=_count(coins),
    )


def _write(job: Job, folder: Path, terms: Terms) -> Path:
    images, classes = job.setting.data(with_canary=job.with_canary)
    size = job.setting.copies * job.setting.size
    return write_client(
        folder,
        terms,
        images,
        classes,
        declared_size=size,
        rows_per_person=job.setting.rows_per_person,
        seed=job.seed,
    )


def _write_helper(job: Job, folder: Path, terms: Terms) -> Path:
    """Write an honest client whose only record has no gradient: it adds its share of the noise."""
    images, classes = job.setting.data(with_canary=False)
    seed = None if job.seed is None else job.seed + 2
    return write_client(folder, terms, 0 * images[:1], classes[:1], declared_size=1, seed=seed)


def _enrolled(policy: Path, terms: Terms) -> Participant:
    participant = Participant.open(policy)
    participant.enrol(terms)
    return participant


def _way_to_coins(participant: Participant, terms: Terms) -> Flip:
    """Return how to get coins; in modes that reveal none, the ledger flips them as in any round."""
    if not terms.mode.answers_always:
        return participant.flip
    return lambda terms, rounds: participant.ledger.flip_all(terms.ledger_key, rounds)


def _flip(terms: Terms, flip: Flip) -> npt.NDArray[np.bool_]:
    """Return the coins of all rounds, asked for in blocks as invitations do."""
    rounds = list(range(1, terms.rounds + 1))
    blocks = [rounds[i : i + _FLIPS_AT_ONCE] for i in range(0, len(rounds), _FLIPS_AT_ONCE)]
    return np.array([coin for block in blocks for coin in flip(terms, block)])


def _ask(participant: Participant, terms: Terms, rounds: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return what the client answers in these rounds to a model of zeros."""
    content = _zeros(terms)
    answers = [participant.gradient_sum(terms, round_, content) for round_ in rounds]
    return np.array(answers, dtype=np.float32).reshape(-1, len(content) // 4)


def _zeros(terms: Terms) -> bytes:
    """Return a model of zeros, as it travels."""
    return vector_to_bytes(np.zeros(count_parameters(model_of(terms)), dtype=np.float32))


def _count(coins: npt.NDArray[np.bool_]) -> Coins:
    return Coins(joined=int(coins.sum()), flips=coins.size)
