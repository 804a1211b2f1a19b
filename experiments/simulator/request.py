"""What a simulation is asked for, checked before any data is read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from coinflower.accounting import validation
from coinflower.accounting.analyses.names import SCHEMES
from coinflower.accounting.errors import UserError
from coinflower.experiments.simulator.scenarios import SETTINGS, analysis_of
from coinflower.experiments.simulator.simulation import STATE
from coinflower.experiments.simulator.simulator import CENTRAL, NOISES, parse_noise
from coinflower.learning import Clipping, FineTuning, Update
from coinflower.learning.data.partitions import HOW
from coinflower.protocol.modes import Mode
from coinflower.protocol.strict import Options
from coinflower.protocol.unit import Unit

NO_SCHEME = "none"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for.

    Attributes:
        scenario: many-small or few-large.
        data: Name or path of the data, or ``synthetic``.
        iterations: Number of iterations.
        schema: Path of the schema, if the data is a table.
        scheme: The analysis that chooses the noise, ``none`` for no noise; by default the one that
            holds for ``noise``.
        total_epsilon: ε for all iterations; None grants each the paper's (0.015, 1e-6).
        delta: δ of the total ε.
        sigma: Noise multiplier, instead of a calibrated one.
        noise: Who adds noise.
        partition: How the data is shared out: equal, writer, dirichlet or files.
        unit: What is sampled, clipped and protected as one.
        clients: Number of clients; as many as the data makes by default.
        d: Records of each, where all have equally many; the scenario's by default.
        p: Participation probability, instead of a fitted one.
        q: Sampling rate, instead of the paper's.
        availability: Probability that a client is there.
        clip_norm: Clip norm.
        clipping: How gradients are clipped.
        cap: Bound on each client's sum, in clip norms; infinite for none.
        update: How the model steps; SGD's step size is the paper's by default.
        model: Model; chosen by the data if None.
        model_options: Its options.
        tuning: What the model begins with, and which of its parts are trained.
        device: Where gradients are computed.
        task: What is learned; if None, classes or else numbers, whichever the targets are.
        task_options: Its options.
        evaluate_every: Iterations between two evaluations.
        split: Split of EMNIST.
        download: Whether missing data may be fetched.
        out: Folder for state and results.
        resume: Whether to continue from the state in ``out``.
        seed: Seeds everything; insecure.
        threads: How many compute at a time, on all cores by default; nothing depends on it.
        threshold: With masked noise, how many clients a sum has at least; None chooses.
        colluders: How many of them may collude; None chooses.
    """

    scenario: str
    data: str
    iterations: int
    scheme: str | None = None
    total_epsilon: float | None = None
    delta: float = 1e-5
    sigma: float | None = None
    noise: str = Mode.TRUSTED
    schema: Path | None = None
    partition: str = "equal"
    unit: Unit = Unit.RECORD
    clients: int | None = None
    d: int | None = None
    p: float | None = None
    q: float | None = None
    availability: float = 1.0
    clip_norm: float = 1.0
    clipping: Clipping = "flat"
    cap: float = math.inf
    update: Update = field(default_factory=lambda: Update(momentum=0.9))
    model: str | None = None
    model_options: Options = field(default_factory=dict, hash=False)
    tuning: FineTuning = field(default_factory=FineTuning)
    device: str = "cpu"
    task: str | None = None
    task_options: Options = field(default_factory=dict, hash=False)
    evaluate_every: int = 50
    split: str | None = None
    download: bool = False
    out: Path | None = None
    resume: bool = False
    seed: int | None = None
    threads: int | None = None
    threshold: int | None = None
    colluders: int | None = None

    def __post_init__(self) -> None:
        """Check what can be checked before any data is read."""
        require_one_of("scenario", self.scenario, list(SETTINGS))
        require_one_of("noise", self.noise, list(NOISES))
        require_one_of("partition", self.partition, list(HOW))
        if self.scheme is not None:
            require_one_of("scheme", self.scheme, [*SCHEMES, NO_SCHEME])
        validation.require_count("iterations", self.iterations, least=1)
        validation.require_count("evaluate-every", self.evaluate_every, least=1)
        validation.require_delta(self.delta)
        validation.require_probability("availability", self.availability)
        validation.require_positive("clip norm", self.clip_norm)
        require_one_of("clipping", self.clipping, ["flat", "automatic"])
        validation.require_cap(self.cap)
        self._check_options()
        self._refuse_contradictions()
        if self.out is not None and (self.out / STATE).exists() and not self.resume:
            raise UserError(f"{self.out} holds a simulation; --resume it or choose another folder.")

    def _check_options(self) -> None:
        """Check what may be left out."""
        positive = {"sigma": self.sigma, "total epsilon": self.total_epsilon}
        for name, value in positive.items():
            if value is not None:
                validation.require_positive(name, value)
        for name, value in {"p": self.p, "q": self.q}.items():
            if value is not None:
                validation.require_probability(name, value)
        counts = {"clients": self.clients, "d": self.d, "threads": self.threads}
        for name, count in counts.items():
            if count is not None:
                validation.require_count(name, count, least=1)
        if self.seed is not None:
            validation.require_count("seed", self.seed, least=0)

    def _refuse_contradictions(self) -> None:
        """Refuse what is asked for and ruled out at once."""
        if self.noise == Mode.NONE and self.scheme not in (None, NO_SCHEME):
            raise UserError(
                f"noise = 'none' adds no noise, but scheme = {self.scheme!r} would choose some; "
                "leave out one of them."
            )
        for name, given in {"threshold": self.threshold, "colluders": self.colluders}.items():
            if given is not None and self.noise != Mode.MASKED:
                raise UserError(
                    f"{name} = {given} goes with noise = 'masked', not with '{self.noise}'."
                )
        if math.isfinite(self.cap) and self.noise == CENTRAL:
            raise UserError(
                f"cap = {self.cap:g} bounds each client's sum, but noise = 'central' has no "
                "clients; leave out one of them."
            )
        if self.chosen_scheme != NO_SCHEME:
            return
        for name, value in {"sigma": self.sigma, "total epsilon": self.total_epsilon}.items():
            if value is not None:
                none = "noise" if self.noise == Mode.NONE else "scheme"
                raise UserError(
                    f"{none} = 'none' adds no noise, but {name} = {value:g} asks for some; leave "
                    "out one of them."
                )

    @property
    def chosen_scheme(self) -> str:
        """Name of the analysis that chooses the noise."""
        if self.scheme is not None:
            return self.scheme
        analysis = analysis_of(parse_noise(self.noise))
        return NO_SCHEME if analysis is None else analysis.name


def require_one_of(field: str, value: str, choices: list[str]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise UserError(f"{field} = {value!r} is unknown; choose one of {', '.join(choices)}.")
