"""The public terms of an experiment: what every client is asked to agree to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import InitVar
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from coinflower.accounting import validation
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.binomial import most_samples
from coinflower.accounting.errors import UserError
from coinflower.accounting.masked import NoiseShares
from coinflower.accounting.mechanism import Round
from coinflower.protocol.modes import Mode
from coinflower.protocol.query import Query, QueryKind
from coinflower.protocol.strict import (
    Cap,
    Count,
    Listed,
    NotaryKey,
    Options,
    Positive,
    Probability,
    Sha256,
    Text,
    decode,
    strict,
)
from coinflower.protocol.unit import Unit

CLASSIFICATION = "classification"
"""The task of terms that name none."""
NO_MODEL = "none"
"""The model of statistics, which look at data alone."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Terms come from the wire; beyond these, nobody's experiment is meant, and accounting takes ages.
_MOST_JSON = 10_000
_CLIP_NORMS = (1e-12, 1e12)
_CAPS = (1.0, 1e12)
_NOISE_MULTIPLIERS = (1e-6, 1e6)
_PRICED_PROBABILITIES = (1e-9, 1.0)
_PRICED_NOISE = (1e-3, 1e4)
_REALS = ("p", "q", "clip_norm", "cap", "noise_multiplier", "learning_rate", "momentum")
# Terms from before there were these keep their hash, and with it their experiment.
_LEFT_OUT_AT_DEFAULT = (
    "learning_rate",
    "momentum",
    "cap",
    "schema",
    "unit",
    "clipping",
    "task",
    "task_options",
    "row_shape",
    "model_options",
    "pretrained",
    "trained_parts",
    "lora_rank",
    "threshold",
    "colluders",
    "ring_bits",
    "notaries",
    "query",
)
# What mode masked needs, and no other mode takes.
_OF_MASKED = ("threshold", "colluders", "ring_bits", "notaries")
_MOST_NOTARIES = 8


@strict
class Terms:
    """What an experiment asks of its clients. Public, immutable, and identified by their hash.

    Attributes:
        experiment: Name of the experiment: letters, digits, dots, dashes, underscores.
        mode: Who adds noise and who sees participation.
        p: Participation probability.
        q: Local sampling rate.
        clip_norm: Bound on each record's gradient; infinite only without privacy.
        cap: Bound on a client's whole sum, in clip norms; infinite, and left out where the terms
            are written, for none.
        noise_multiplier: Noise over clip norm; 0 only without privacy.
        rounds: How many rounds are planned.
        rounds_per_invitation: How many coins one invitation asks for.
        model: Name of the model, installed at the client.
        classes: How many numbers it answers with: one per class, label or quantity to predict.
        learning_rate: Step size, in terms of earlier versions. It costs no ε, so it is a setting of
            the server now.
        momentum: The same.
        schema: Hash of the schema that clients read their tables by; left out where the terms are
            written if there is none.
        unit: What ε protects, what is sampled and clipped, and what declared sizes count.
        clipping: ``flat`` scales a longer gradient down to the clip norm; ``automatic`` brings
            nearly all gradients to it. Neither lets one be longer.
        task: What is learned: a built-in task, or ``package.module:Task`` installed at the client.
        task_options: Its options.
        row_shape: Shape of a record, for models that are made to measure; None for others.
        model_options: Options of the model, such as widths.
        pretrained: Hash of a file of public weights at the client, which the model begins with.
        trained_parts: Beginnings of the names of the parameters that are trained; empty for all.
        lora_rank: Rank of what is learned beside each frozen Linear layer; 0 for nothing.
        threshold: In mode masked, how many clients an opened sum has at least.
        colluders: How many of them may tell what they added; the others' noise is what is charged.
        ring_bits: How many bits a masked number has: 32 or 64.
        notaries: Public keys of the notaries, all of whom are needed to open a sum.
        query: What is asked of every record in place of a gradient; None in a training.
        scheme: Name of the scheme that charges a round; may be left out, but not be another than
            the mode's.
    """

    experiment: str
    mode: Mode
    p: Probability
    q: Probability
    clip_norm: Annotated[float, BeforeValidator(lambda c: math.inf if c == "infinite" else c)]
    noise_multiplier: float
    rounds: Annotated[int, Field(ge=1, le=1_000_000)]
    model: Text
    classes: Annotated[int, Field(ge=1, le=100_000)]
    learning_rate: Positive | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    cap: Cap = math.inf
    rounds_per_invitation: Count = 1
    schema: Sha256 | None = None
    unit: Unit = Unit.RECORD
    clipping: Literal["flat", "automatic"] = "flat"
    task: Text = CLASSIFICATION
    task_options: Options = dataclasses.field(default_factory=dict)
    row_shape: Listed[Count] | None = None
    model_options: Options = dataclasses.field(default_factory=dict)
    pretrained: Sha256 | None = None
    trained_parts: Listed[Text] = ()
    lora_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    threshold: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    colluders: Count | None = None
    ring_bits: Literal[32, 64] | None = None
    notaries: Listed[NotaryKey] = ()
    query: Query | None = None
    scheme: InitVar[str | None] = None

    def __post_init__(self, scheme: str | None) -> None:
        """Check the name, and what concerns several fields."""
        if not _NAME.fullmatch(self.experiment):
            raise UserError(
                f"experiment = {self.experiment!r} must be 1 to 64 letters, digits, dots, dashes "
                "or underscores and start with a letter or digit."
            )
        if self.has_model and self.task == CLASSIFICATION and self.classes < 2:
            raise UserError(
                f"classes = {self.classes} must be at least 2: there is nothing to tell apart."
            )
        if self.rounds_per_invitation > self.rounds:
            raise UserError(
                f"rounds_per_invitation = {self.rounds_per_invitation} is more than the "
                f"{self.rounds} rounds planned."
            )
        if self.learning_rate is None and self.momentum is not None:
            raise UserError(
                f"momentum = {self.momentum:g} goes with a learning rate; both are settings of the "
                "server now: write them under [update]."
            )
        if self.learning_rate is not None and self.momentum is None:
            object.__setattr__(self, "momentum", 0.0)
        self._check_noise()
        self._check_query()
        self._check_cap()
        self._check_masks()
        if not self.mode.flips_coins and self.p != 1:
            raise UserError(f"p = {self.p} must be 1 in mode {self.mode}: everybody takes part.")
        if scheme not in (None, self._scheme_name):
            raise UserError(
                f"scheme = {scheme!r} must be {self._scheme_name!r}, the one of mode {self.mode}."
            )

    def _check_noise(self) -> None:
        if self.mode.is_private:
            validation.require_positive("clip_norm", self.clip_norm)
            validation.require_positive("noise_multiplier", self.noise_multiplier)
            _require_within("clip_norm", self.clip_norm, _CLIP_NORMS)
            _require_within("noise_multiplier", self.noise_multiplier, _NOISE_MULTIPLIERS)
        elif self.clipping == "automatic" and math.isinf(self.clip_norm):
            raise UserError(
                "clipping = 'automatic' needs a finite clip norm to bring gradients to."
            )
        elif not self.clip_norm > 0:
            raise UserError(f"clip_norm = {self.clip_norm} must be above 0.")
        elif self.noise_multiplier != 0:
            raise UserError(
                f"noise_multiplier = {self.noise_multiplier} must be 0 in mode none, which "
                "protects nothing; choose a private mode to add noise."
            )

    def _check_query(self) -> None:
        if self.query is None:
            return
        if not self.mode.is_private:
            raise UserError("a query needs a mode that protects: mode none would charge nothing.")
        if self.clipping != "flat":
            raise UserError("clipping = 'automatic' is for gradients: leave it out of a query.")
        if not self.has_model and self.model != NO_MODEL:
            raise UserError(f"model = {self.model!r} must be {NO_MODEL!r}: statistics take none.")

    def _check_cap(self) -> None:
        if not self.is_capped:
            return
        _require_within("cap", self.cap, _CAPS)
        if math.isinf(self.clip_norm):
            raise UserError(
                f"cap = {self.cap:g} counts clip norms, so the clip norm must be finite; leave out "
                "the cap, or set a clip norm."
            )

    def _check_masks(self) -> None:
        stated = [name for name in _OF_MASKED if getattr(self, name) not in (None, ())]
        if not self.mode.masks_sums:
            if stated:
                raise UserError(f"{stated[0]} goes with mode masked, not with mode {self.mode}.")
            return
        missing = [name for name in _OF_MASKED if name not in stated]
        if missing:
            raise UserError(f"mode masked needs {', '.join(missing)}.")
        if len(set(self.notaries)) < len(self.notaries) or len(self.notaries) > _MOST_NOTARIES:
            raise UserError(f"notaries must be at most {_MOST_NOTARIES} different keys.")
        self.noise_shares  # noqa: B018 - checks threshold and colluders

    @property
    def has_model(self) -> bool:
        """Whether a question carries a model: all but statistics."""
        return self.query is None or self.query.kind is QueryKind.EVALUATION

    @property
    def noise_shares(self) -> NoiseShares:
        """The noise that each client adds in mode masked."""
        assert self.threshold is not None
        assert self.colluders is not None
        return NoiseShares(
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            threshold=self.threshold,
            colluders=self.colluders,
        )

    @property
    def honest_shares(self) -> int:
        """How many clients' noises make the one that is charged: 1 where each adds it whole."""
        return self.noise_shares.honest if self.mode.masks_sums else 1

    @property
    def is_capped(self) -> bool:
        """Whether a client's whole sum is clipped, too."""
        return math.isfinite(self.cap)

    @property
    def cap_norm(self) -> float:
        """Largest norm of a client's sum; infinite without a cap."""
        return self.cap * self.clip_norm

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each coordinate."""
        return self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0

    def longest_sum(self, declared_size: int) -> float:
        """Return the largest length, in clip norms, of what a client of that size adds up."""
        return min(most_samples(declared_size, self.q), self.cap)

    def round_cost(self, declared_size: int) -> Analysis | None:
        """Return what one round costs a client of that size; None without privacy.

        Raises:
            ValueError: Terms so extreme that pricing them would keep a client busy for minutes.
        """
        kind = self.mode.scheme
        if kind is None:
            return None
        for field, value in (("p", self.p), ("q", self.q)):
            _require_within(field, value, _PRICED_PROBABILITIES)
        _require_within("noise_multiplier", self.noise_multiplier, _PRICED_NOISE)
        return kind(Round(self.p, self.q, declared_size, self.noise_multiplier, self.cap))

    @property
    def _scheme_name(self) -> str:
        return self.mode.scheme.name if self.mode.scheme else "none"

    def to_fields(self) -> dict[str, Any]:
        """Return the terms as plain values, the scheme that charges them included."""
        fields = {**dataclasses.asdict(self), "mode": str(self.mode), "scheme": self._scheme_name}
        for field in dataclasses.fields(self):
            if field.name in _LEFT_OUT_AT_DEFAULT and fields[field.name] == _default(field):
                del fields[field.name]
        # 1, 1.0 and -0.0, 0.0 are equal, so they must be written, and hashed, alike.
        fields.update({name: fields[name] + 0.0 for name in _REALS if name in fields})
        if math.isinf(self.clip_norm):
            fields["clip_norm"] = "infinite"
        if self.query is not None:
            fields["query"] = self.query.to_fields()
        return {
            name: list(each) if isinstance(each, tuple) else each for name, each in fields.items()
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Terms:
        """Return the terms with these fields; ``scheme`` may be left out, but not be another.

        Raises:
            ValueError: A missing or unknown field, or a value out of range.
        """
        return decode(cls, json.dumps(fields), "The terms")

    def to_json(self) -> str:
        """Return the terms as canonical JSON."""
        return json.dumps(self.to_fields(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Terms:
        """Return the terms that `to_json` wrote.

        Raises:
            ValueError: Not JSON, or not terms.
        """
        if len(text) > _MOST_JSON:
            raise UserError(f"The terms are longer than {_MOST_JSON} characters.")
        return decode(cls, text, "The terms")

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def ledger_key(self) -> str:
        """Name under which a ledger keeps this experiment: other terms are another experiment.

        With the whole hash: of a shorter one, a server could find two terms that share it, have the
        strong ones charged and the weak ones answered.
        """
        return f"{self.experiment}#{self.hash}"


def _default(field: dataclasses.Field[Any]) -> object:
    return field.default_factory() if callable(field.default_factory) else field.default


def _require_within(field: str, value: float, bounds: tuple[float, float]) -> None:
    least, most = bounds
    if not least <= value <= most:
        raise UserError(f"{field} = {value} must lie in {least:g} to {most:g}.")
