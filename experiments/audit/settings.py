"""What is audited: a client's terms, the geometry of its gradients, and both data sets.

All of a client's other records share one unit gradient; that of the canary x' has an angle to it
(docs/mathematics.md, "The mechanism"). A *wide* message holds many copies of such a client, each on
two coordinates of its own: given the round's coin they are independent trials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.client_unit import whole_client
from coinflower.accounting.analyses.paper import AsPlotted
from coinflower.accounting.mechanism import Round
from coinflower.experiments.audit.colluders import OFFSET, declared_by_all
from coinflower.experiments.audit.federation import Classes, Images, learning_rate
from coinflower.experiments.audit.masked import fields_for, others_of
from coinflower.experiments.audit.model import COPIES, PLANE, RAW_NORM, WIDE
from coinflower.learning import cap_factors
from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import Terms
from coinflower.protocol.unit import Unit

Array = npt.NDArray[np.float64]

ANGLES = {"aligned": 0.0, "angled": 1.2, "across": math.pi / 2, "against": math.pi}
CLIP_NORM = 0.5
_BLOCK = 50


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One client under one set of terms, with one geometry.

    Attributes:
        mode: Who adds noise and who sees participation.
        geometry: A name of ``ANGLES``.
        p: Participation probability.
        q: Sampling rate.
        d: Number of records besides the canary.
        noise_multiplier: Noise over clip norm.
        cap: Bound on the client's sum, in clip norms; infinite for none. Copies in one message
            would share it, so there must be one.
        length: Length of the other records' gradients, in clip norms.
        whole_client: Whether the data sets differ in all of the client's records, not in one.
        deltas: The δ of each claim.
        rounds: Rounds in each world of which messages are looked at; where the auditor may choose
            among charged rounds, at most so many of either coin.
        flips: Coins that are counted in each world.
        copies: Clients in one message: 1, or ``COPIES``.
        colluders: Whether other clients conspire against it, known to the observer.
        twin: Whether a second client, in a process of its own, gives away its noise.
        under_masks: Whether the observer sees the client's masked messages, which nobody opens,
            instead of sums: what is left of one when the next is subtracted from it.
        rows_per_person: Rows of each person, if persons are protected and not records: the canary
            is a person then, and so is everybody else.
        label: Tells settings of one mode and geometry apart.
    """

    mode: Mode
    geometry: str
    p: float = 0.5
    q: float = 0.5
    d: int = 2
    noise_multiplier: float = 0.7
    cap: float = math.inf
    length: float = 1.0
    whole_client: bool = False
    deltas: tuple[float, ...] = (0.01, 0.1)
    rounds: int
    flips: int = 1
    copies: int = COPIES
    colluders: bool = False
    twin: bool = False
    under_masks: bool = False
    rows_per_person: int = 1
    label: str = ""

    @property
    def name(self) -> str:
        """What the setting is called in reports."""
        return f"{self.mode}, {self.geometry} {self.label}".rstrip()

    @property
    def angle(self) -> float:
        """Angle between the canary's gradient and the others'."""
        return ANGLES[self.geometry]

    @property
    def size(self) -> int:
        """Declared size of the client: the canary is counted."""
        return self.d + 1

    @property
    def declared_total(self) -> int:
        """What all clients of a round declare."""
        others = declared_by_all() if self.colluders else others_of(self.mode)
        return self.copies * self.size + others

    def terms(self, rounds: int) -> Terms:
        """Return the terms of a run of so many rounds."""
        return Terms(
            experiment="audit",
            mode=self.mode,
            p=self.p,
            q=self.q,
            clip_norm=CLIP_NORM,
            cap=self.cap,
            noise_multiplier=self.noise_multiplier,
            unit=Unit.RECORD if self.rows_per_person == 1 else Unit.PERSON,
            rounds=rounds,
            rounds_per_invitation=min(rounds, _BLOCK),
            model=PLANE if self.copies == 1 else WIDE,
            classes=2,
            learning_rate=learning_rate(self.p, self.q, self.declared_total),
            **fields_for(
                self.mode,
                [self.copies * self.size, *[1] * others_of(self.mode)],
                q=self.q,
                cap=self.cap,
                clip_norm=CLIP_NORM,
                noise_multiplier=self.noise_multiplier,
            ),
        )

    def data(self, *, with_canary: bool) -> tuple[Images, Classes]:
        """Return one of both neighbouring data sets, for every copy.

        Pixels cannot be negative, so a canary that points away from the others is its mirror image
        with the other class, whose gradient has the other sign.
        """
        away = self.angle > math.pi / 2
        turn = math.pi - self.angle if away else self.angle
        others = 1.0 if self.length == 1 else self.length * CLIP_NORM / RAW_NORM
        records = [(others, 0.0, 0)] * self.d
        if with_canary:
            records.append((math.cos(turn), math.sin(turn), int(away)))
        images = np.zeros((self.copies, len(records), 2 * self.copies), dtype=np.float32)
        for copy in range(self.copies):
            images[copy, :, 2 * copy : 2 * copy + 2] = [record[:2] for record in records]
        if self.whole_client and not with_canary:
            images[:] = 0  # no gradient, as if there were no records
        classes = np.tile([record[2] for record in records], self.copies)
        flat, times = images.reshape(-1, 1, 2 * self.copies).clip(0, 1), self.rows_per_person
        return np.repeat(flat, times, axis=0), np.repeat(classes, times)

    @property
    def canary(self) -> tuple[float, float]:
        """The canary's clipped gradient, in clip norms; the others' lie on the first axis."""
        sine = math.sin(self.angle)
        return math.cos(self.angle), -sine if self.angle > math.pi / 2 else sine

    def sums(self, *, with_canary: bool) -> Array:
        """Return what the client sends, in clip norms, if it samples 0, ..., d of the others."""
        sums = np.zeros((self.d + 1, 2))
        sums[:, 0] = self.length * np.arange(self.d + 1.0)
        if with_canary:
            sums += self.canary
        return sums * cap_factors(np.linalg.norm(sums, axis=1), self.cap)[:, None]

    def outputs(self, vectors: npt.NDArray[np.float32]) -> Array:
        """Return vectors as they travel (one row per round) in clip norms, rounds x copies x 2."""
        scaled: Array = vectors.astype(np.float64) / CLIP_NORM
        if self.colluders:
            scaled[:, -1] -= OFFSET
        scaled = -scaled  # gradients of class 0 point against the data
        return scaled.reshape(len(vectors), self.copies, 2)


def claimed_scheme(setting: Setting) -> Analysis:
    """Return what a ledger charges such a client for a round, or what it then loses as a whole."""
    scheme = setting.terms(1).round_cost(setting.size)
    assert scheme is not None
    return whole_client(scheme) if setting.whole_client else scheme


def paper_scheme(setting: Setting) -> Analysis:
    """Return what the source paper's figures say about such a round."""
    return AsPlotted(
        Round(p=setting.p, q=setting.q, d=setting.d, noise_multiplier=setting.noise_multiplier)
    )


def log_likelihood_ratio(setting: Setting, points: Array) -> Array:
    """Return log P/Q at points (n x 2) that may come from either coin.

    P and Q are the pair of docs/mathematics.md, "The mechanism". Where the coin is seen
    the points are those of participating rounds.
    """
    p = 1.0 if setting.mode.shows_coins else setting.p
    mass = stats.binom.pmf(np.arange(setting.d + 1), setting.d, setting.q)

    def density(sums: Array, weights: Array) -> Array:
        """Return log Σ_i w_i·N(point; sums_i), without the constant."""
        total = np.full(len(points), -np.inf)
        for weight, at in zip(weights[weights > 0], sums[weights > 0], strict=True):
            square = np.square(points - at).sum(axis=1)
            total = np.logaddexp(total, math.log(weight) - square / 2 / setting.noise_multiplier**2)
        return total

    without = math.log(p) + density(setting.sums(with_canary=False), mass)
    with_canary = math.log(p) + density(setting.sums(with_canary=True), mass)
    ratio_top = math.log(setting.q) + with_canary
    if setting.q < 1:
        ratio_top = np.logaddexp(ratio_top, math.log1p(-setting.q) + without)
    if setting.whole_client:
        without = math.log(p) + density(np.zeros((1, 2)), np.ones(1))
    if p == 1:
        return ratio_top - without
    sits_out = density(np.zeros((1, 2)), np.array([1 - p]))
    return np.logaddexp(ratio_top, sits_out) - np.logaddexp(without, sits_out)
