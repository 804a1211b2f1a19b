"""The audit: every mode and geometry through the shipped code, and a verdict on each claim."""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from coinflower.experiments.audit.claims import Claim, judge, judge_coins
from coinflower.experiments.audit.faults import planted
from coinflower.experiments.audit.masked import seen_in_sums
from coinflower.experiments.audit.one_run import Training, audit_training
from coinflower.experiments.audit.settings import ANGLES, Setting
from coinflower.experiments.audit.trials import Job, Outputs, run_job
from coinflower.protocol.modes import PRIVATE_MODES, Mode

FALSE_ALARM = 1e-3
"""Probability that an audit of sound code refutes any claim at all."""
_PROCESSES = 2
_FULL = 10
_COINS_JUDGED_IN = "across"
_SEEDS_APART = 10


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is audited."""

    settings: tuple[Setting, ...]
    trainings: tuple[Training, ...]

    @property
    def claims(self) -> int:
        """How many claims may be refuted by chance."""
        coins = sum(2 * _judges_coins(setting) for setting in self.settings)
        return sum(len(setting.deltas) for setting in self.settings) + coins + len(self.trainings)


def standard_plan(*, full: bool) -> Plan:
    """Return every mode with every geometry, and the cases that see what those cannot.

    Args:
        full: Ten times the trials.
    """
    times = _FULL if full else 1
    settings = [
        Setting(
            mode=mode,
            geometry=geometry,
            p=mode.usual_p,
            # A trusting client's rounds come with either coin, the others' are chosen.
            rounds=times * (300 if seen_in_sums(mode) and mode.flips_coins else 150),
            flips=times * 4000,
        )
        for mode in PRIVATE_MODES
        for geometry in ANGLES
    ]
    settings += [rare_participation(times=times), single_client(times=times), twin()]
    settings.append(conspired_against(times=times))
    settings += [persons(mode, times=times) for mode in (Mode.TRUSTED, Mode.UNTRUSTED)]
    settings += [under_masks(times=times), worst_under_cap(times=times)]
    settings += [capped_client(mode, times=times) for mode in PRIVATE_MODES]
    # Little noise shows what one training can prove at all, much noise makes a claim worth proving.
    trainings = [
        Training(mode=mode, rounds=rounds, noise_multiplier=noise)
        for mode in PRIVATE_MODES
        for rounds, noise in ((24, 2.0), (60, 10.0))
    ]
    return Plan(settings=tuple(settings), trainings=tuple(trainings))


def rare_participation(*, times: int = 1) -> Setting:
    """Return a setting whose loss is far above the source paper's figure."""
    return Setting(
        mode=Mode.UNTRUSTED,
        geometry="aligned",
        p=0.02,
        q=0.7,
        d=1,
        noise_multiplier=0.5,
        deltas=(1e-3,),
        rounds=times * 1500,
        flips=times * 20_000,  # about 400 of them say yes, and all of these are looked at
        label="rare",
    )


def single_client(*, times: int = 1) -> Setting:
    """Return one client per message: what records of one sample share shows only here."""
    return Setting(
        mode=Mode.UNTRUSTED,
        geometry="against",
        p=1.0,
        d=3,
        noise_multiplier=0.5,
        rounds=times * 2400,
        copies=1,
        deltas=(0.2,),
        label="single",
    )


def persons(mode: Mode, *, times: int = 1) -> Setting:
    """Return a client that protects persons of three rows each, one of whom is there or not."""
    return Setting(
        mode=mode,
        geometry="angled",
        rounds=times * 150,
        flips=times * 1000,
        rows_per_person=3,
        label="persons",
    )


def twin() -> Setting:
    """Return a client beside one in another process whose data, hence noise, everybody knows."""
    return Setting(
        mode=Mode.UNTRUSTED, geometry="across", p=1.0, rounds=100, twin=True, label="twin"
    )


def conspired_against(*, times: int = 1) -> Setting:
    """Return a client among others that send extremes to round its sum."""
    return Setting(
        mode=Mode.LOCAL_ONLY,
        geometry="across",
        p=1.0,
        q=1.0,
        noise_multiplier=1.0,
        deltas=(0.1,),
        rounds=times * 500,
        copies=1,
        colluders=True,
        label="colluders",
    )


def under_masks(*, times: int = 1) -> Setting:
    """Return a client whose masked messages are compared, and never opened: they lose nothing."""
    return Setting(
        mode=Mode.MASKED,
        geometry="across",
        p=1.0,
        rounds=times * 100,
        deltas=(0.0,),
        under_masks=True,
        label="under masks",
    )


def worst_under_cap(*, times: int = 1) -> Setting:
    """Return the data that lose most under a cap: the sum has room for all of the canary.

    Of d = 1 other record this is the geometry of Theorem 3 in docs/mathematics.md, on a line.
    """
    cap = 1.5
    return Setting(
        mode=Mode.UNTRUSTED,
        geometry="aligned",
        p=0.1,
        d=1,
        noise_multiplier=0.5,
        cap=cap,
        length=cap - 1,
        deltas=(0.01,),
        rounds=times * 300,
        flips=times * 4000,
        copies=1,
        label="capped",
    )


def capped_client(mode: Mode, *, times: int = 1) -> Setting:
    """Return a client whose sum would be long, and that is there as a whole or not at all.

    The cap is the most that it can lose then, and all equal gradients lose as much.
    """
    return Setting(
        mode=mode,
        geometry="aligned",
        p=mode.usual_p,
        q=0.9,
        d=20,
        noise_multiplier=2.0,
        cap=1.0,
        whole_client=True,
        deltas=(0.05,),
        rounds=times * (500 if seen_in_sums(mode) and mode.flips_coins else 200),
        flips=times * 1000,
        copies=1,
        label="as a whole, capped",
    )


def run_audit(
    plan: Plan,
    *,
    seed: int | None = None,
    fault: str | None = None,
    false_alarm: float = FALSE_ALARM,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> dict[str, Any]:
    """Audit and return figures.

    Args:
        plan: What to audit.
        seed: Makes coins, samples and noise repeatable; insecure, and reported so.
        fault: Name of a fault to plant; None for the code as shipped.
        false_alarm: Probability that sound code fails; shared by all claims.
        progress: Told how many runs are done, and of how many.

    Returns:
        ``claims`` and ``paper_claims``, each with claimed and audited ε, and what led to them.
    """
    started = time.monotonic()
    error = false_alarm / plan.claims
    with planted(fault), _pool() as pool:
        runs = _Runs(plan, error, seed, fault, pool)
        for done, _ in enumerate(as_completed(runs.futures), start=1):
            progress(done, len(runs.futures))
        claims = list(runs.judged())
    return {
        "claims": [dataclasses.asdict(claim) for claim in claims],
        "paper_claims": [
            _paper_claim(claim) for claim in claims if claim.paper_epsilon is not None
        ],
        "holds": all(claim.holds for claim in claims),
        "family_confidence": 1 - false_alarm,
        "trials": sum(outputs.trials for outputs in runs.outputs),
        "cpu_seconds": sum(outputs.cpu_seconds for outputs in runs.outputs),
        "seconds": time.monotonic() - started,
        "insecure_seed": seed,
        "fault": fault,
    }


class _Runs:
    """The runs of a plan, each under way in a process of its own."""

    def __init__(
        self,
        plan: Plan,
        error: float,
        seed: int | None,
        fault: str | None,
        pool: ProcessPoolExecutor,
    ) -> None:
        self._plan = plan
        self._error = error
        self._seed, self._seeds_used = seed, 0
        self._fault = fault
        self._pool = pool
        self._trainings = [
            pool.submit(
                audit_training,
                dataclasses.replace(training, seed=self._next_seed(), fault=fault),
                error,
            )
            for training in plan.trainings
        ]
        self._outputs = [
            [self._submit(setting, world) for world in _worlds(setting)]
            for setting in plan.settings
        ]
        self.futures: list[Future[Any]] = [
            *self._trainings,
            *(f for fs in self._outputs for f in fs),
        ]

    @property
    def outputs(self) -> list[Outputs]:
        """What all runs that are not trainings have shown."""
        return [future.result() for futures in self._outputs for future in futures]

    def judged(self) -> Iterator[Claim]:
        for setting, futures in zip(self._plan.settings, self._outputs, strict=True):
            with_canary, without, *bystander = (future.result() for future in futures)
            if bystander:
                with_canary, without = (_less(one, bystander[0]) for one in (with_canary, without))
            yield from judge(setting, with_canary, without, self._error)
            if with_canary.coins and without.coins and _judges_coins(setting):
                yield from judge_coins(setting, with_canary.coins, without.coins, self._error)
        for training in self._trainings:
            yield from training.result()

    def _submit(self, setting: Setting, with_canary: bool) -> Future[Outputs]:
        job = Job(
            setting=setting, with_canary=with_canary, seed=self._next_seed(), fault=self._fault
        )
        return self._pool.submit(run_job, job)

    def _next_seed(self) -> int | None:
        self._seeds_used += _SEEDS_APART
        return None if self._seed is None else 1_000_000 * self._seed + self._seeds_used


def _worlds(setting: Setting) -> tuple[bool, ...]:
    return (True, False, False) if setting.twin else (True, False)


def _judges_coins(setting: Setting) -> bool:
    return setting.p < 1 and setting.geometry == _COINS_JUDGED_IN


def _less(outputs: Outputs, bystander: Outputs) -> Outputs:
    return dataclasses.replace(outputs, heads=outputs.heads - bystander.heads)


def _pool() -> ProcessPoolExecutor:
    """Return processes that each make one run, forked off a clean one that has all modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(_PROCESSES, mp_context=context, max_tasks_per_child=1)


def _paper_claim(claim: Claim) -> dict[str, Any]:
    fields = dataclasses.asdict(claim)
    paper = fields.pop("paper_epsilon")
    return {**fields, "claimed_epsilon": paper, "holds": claim.audited_epsilon <= paper}
