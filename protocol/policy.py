"""The policy of a data owner: what it allows, written in a TOML file of its own."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import tomli_w
from pydantic import Field

from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.entries import Budget
from coinflower.protocol.modes import Mode
from coinflower.protocol.notary_key import notary_key
from coinflower.protocol.query import QueryKind
from coinflower.protocol.refusal import Refusal, RefusedError
from coinflower.protocol.strict import (
    Cap,
    Count,
    Index,
    Listed,
    Positive,
    Probability,
    Sha256,
    Text,
    load,
    strict,
)
from coinflower.protocol.terms import Terms
from coinflower.protocol.unit import Unit

__all__ = [
    "BUILT_IN_MODELS",
    "BUILT_IN_TASKS",
    "Policy",
    "Refusal",
    "RefusedError",
    "Share",
    "load_policy",
]


@strict
class Share:
    """Which part of a public data set plays this client's own data (for trials)."""

    clients: Count
    index: Index
    how: Text = "equal"
    seed: Index = 0
    alpha: Positive = 0.5

    def __post_init__(self) -> None:
        """Check what concerns two fields."""
        if self.index >= self.clients:
            raise UserError(f"index = {self.index} must lie in 0 to {self.clients - 1}.")


BUILT_IN_MODELS = frozenset(
    {"linear", "mlp", "digits", "paper-cnn", "tanh-cnn", "resnet18-gn", "gru", "transformer"}
)
BUILT_IN_TASKS = frozenset({"classification", "binary", "multilabel", "regression"})


@strict
class Policy:
    """What a data owner allows; nothing weaker is ever agreed to.

    Attributes:
        data_set: Name of the data set, as its ledger bears it.
        data: Name or path of the data.
        schema: Path of the schema that says how tables are read.
        ledger: Path of the ledger.
        witness: Path, best on another disk, of a note of the ledger's last entry.
        declared_size: Public bound on the number of units, fixed before a run.
        unit: What that counts, and what must be protected: a record or a person.
        most_rows_per_person: Most rows of a person that are used, if persons are protected.
        modes: Modes allowed.
        largest_p: Largest participation probability.
        largest_q: Largest sampling rate.
        largest_clip_norm: Largest clip norm.
        largest_cap: Largest cap on the whole sum, in clip norms; if infinite, none need be.
        least_noise_multiplier: Least noise multiplier.
        budget: What may be lost in all, over all experiments.
        most_rounds: Most rounds of one experiment.
        most_rounds_per_invitation: Most coins that one message may ask for.
        most_classes: Most classes of a model.
        most_parameters: Most parameters of a model.
        most_experiments: Most experiments that the ledger ever takes.
        most_open_experiments: Most of them that may have rounds left to play at a time.
        pricing_seconds: How long the processor may compute the price of an experiment.
        models: Models that may run here; a name of the form ``package.module:function`` is code
            of the owner's own, which a server can only call if it is listed.
        tasks: Tasks that may be learned here; one of the form ``package.module:Task`` is code of
            the owner's own, too.
        queries: Kinds of queries that are answered at all: ``evaluation``, ``statistics``. They are
            held to the same limits and charged to the same budget.
        fingerprints: By the name of a model, the fingerprint that it must have: one of the same
            name with other layers is refused (``coinflower model fingerprint``).
        pretrained: Files of public weights that a model may begin with; none comes from the server.
        loaders: Functions of the owner's own that may be named as data, in the same form.
        device: Where gradients are computed: cpu, cuda, mps, or auto for the best there is.
        share: Part of a public data set that stands for this client's data.
        insecure_seed: Makes coins, samples and noise predictable; for tests only.
        notaries: In mode masked, public keys of the notaries, or paths of their ``.pub`` files. One
            honest notary among them is enough, so the terms must name all of these and no others.
        signing_key: Path of this owner's private key (coinflower keys client), by which notaries
            know it.
        least_threshold: Fewest clients of a sum that notaries may open.
        least_colluders: So many clients at least may conspire with the server and learn nothing.
    """

    data_set: Text
    data: Text
    ledger: Path
    declared_size: Count
    modes: frozenset[Mode]
    largest_p: Probability
    largest_q: Probability
    largest_clip_norm: Annotated[float, Field(gt=0)]
    least_noise_multiplier: Annotated[float, Field(ge=0)]
    budget: Budget
    largest_cap: Cap = math.inf
    unit: Unit = Unit.RECORD
    most_rows_per_person: Count = 1_000_000
    most_rounds: Count = 1_000_000
    most_rounds_per_invitation: Count = 10_000
    most_classes: Count = 10_000
    most_parameters: Count = 20_000_000
    most_experiments: Count = 10_000
    most_open_experiments: Count = 100
    pricing_seconds: Positive = 30.0
    models: frozenset[Text] = BUILT_IN_MODELS
    tasks: frozenset[Text] = BUILT_IN_TASKS
    queries: frozenset[QueryKind] = frozenset()
    fingerprints: dict[Text, Sha256] = dataclasses.field(default_factory=dict)
    pretrained: Listed[Path] = ()
    loaders: frozenset[Text] = frozenset()
    device: Text = "cpu"
    schema: Path | None = None
    share: Share | None = None
    insecure_seed: Index | None = None
    witness: Path | None = None
    notaries: frozenset[Text] = frozenset()
    signing_key: Path | None = None
    least_threshold: Count = 2
    least_colluders: Count = 1

    def __post_init__(self) -> None:
        """Refuse a policy that keeps no books or allows nothing."""
        files = {
            "ledger": self.ledger,
            "witness": self.witness,
            "schema": self.schema,
            "signing_key": self.signing_key,
        }
        for name, file in files.items():
            if file is not None and not file.name:
                raise UserError(f"{name} = {str(file)!r} must be the path of a file.")
        if not self.modes:
            raise UserError(f"modes is empty; allow at least one of {', '.join(Mode)}.")
        if not self.models:
            raise UserError("models is empty; list the models that may run on this data.")
        if not self.tasks:
            raise UserError("tasks is empty; list the tasks that may be learned from this data.")

    @classmethod
    def for_terms(
        cls,
        terms: Terms,
        *,
        data_set: str,
        data: str,
        ledger: Path,
        declared_size: int,
        budget: Budget,
        loaders: frozenset[str] = frozenset(),
        pretrained: tuple[Path, ...] = (),
        most_parameters: int = 0,
        device: str = "cpu",
        schema: Path | None = None,
        share: Share | None = None,
        insecure_seed: int | None = None,
        signing_key: Path | None = None,
        beside: Sequence[Terms] = (),
    ) -> Policy:
        """Return a policy that accepts the terms, and those beside them, and nothing weaker."""
        every = (terms, *beside)
        return cls(
            data_set=data_set,
            data=data,
            ledger=ledger,
            declared_size=declared_size,
            modes=frozenset({terms.mode}),
            largest_p=max(each.p for each in every),
            largest_q=max(each.q for each in every),
            largest_clip_norm=terms.clip_norm,
            largest_cap=terms.cap,
            unit=terms.unit,
            least_noise_multiplier=min(each.noise_multiplier for each in every),
            budget=budget,
            most_rounds=max(terms.rounds, cls.most_rounds),
            most_rounds_per_invitation=max(
                terms.rounds_per_invitation, cls.most_rounds_per_invitation
            ),
            most_classes=max(terms.classes, cls.most_classes),
            most_parameters=max(most_parameters, cls.most_parameters),
            models=frozenset({terms.model}),
            tasks=BUILT_IN_TASKS | {terms.task},
            queries=frozenset(each.query.kind for each in every if each.query is not None),
            loaders=loaders,
            pretrained=pretrained,
            device=device,
            schema=schema,
            share=share,
            insecure_seed=insecure_seed,
            notaries=frozenset(terms.notaries),
            signing_key=signing_key,
            least_threshold=terms.threshold or cls.least_threshold,
            least_colluders=terms.colluders or cls.least_colluders,
        )

    def to_toml(self, comments: Mapping[str, str] | None = None) -> str:
        """Return what `load_policy` reads; limits that have a default are left out.

        Args:
            comments: By key, or heading of a table, what to say beside it.
        """
        table = {
            field.name: _plain(getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) not in (field.default, {})
        }
        lines = tomli_w.dumps(table).splitlines()
        for index, line in enumerate(lines):
            comment = (comments or {}).get(line.partition(" = ")[0])
            if comment is not None:
                lines[index] = f"{line:<32}# {comment}"
        return "\n".join([*lines, ""])

    def require(self, terms: Terms) -> None:
        """Refuse terms that are weaker than this policy.

        Raises:
            RefusedError: With the reason; its text has the figures and is for the owner only.
        """
        if terms.mode not in self.modes:
            allowed = ", ".join(sorted(self.modes))
            raise RefusedError(Refusal.MODE, f"mode {terms.mode} is not among {allowed}")
        if terms.query is not None and terms.query.kind not in self.queries:
            allowed = ", ".join(sorted(self.queries)) or "no queries"
            raise RefusedError(Refusal.QUERY, f"{terms.query.kind} is not allowed, but {allowed}")
        if terms.unit != self.unit:
            raise RefusedError(Refusal.UNIT, f"unit {terms.unit} is not {self.unit}")
        # Written so that nan, which is neither above nor below a limit, is refused.
        if not terms.p <= self.largest_p:
            raise RefusedError(Refusal.PARTICIPATION, f"p = {terms.p} > {self.largest_p}")
        if not terms.q <= self.largest_q:
            raise RefusedError(Refusal.SAMPLING, f"q = {terms.q} > {self.largest_q}")
        if terms.mode.is_private and not terms.clip_norm <= self.largest_clip_norm:
            detail = f"clip norm = {terms.clip_norm} > {self.largest_clip_norm}"
            raise RefusedError(Refusal.CLIPPING, detail)
        if terms.mode.is_private and not terms.cap <= self.largest_cap:
            raise RefusedError(Refusal.CAP, f"cap = {terms.cap} > {self.largest_cap}")
        if terms.mode.is_private and not terms.noise_multiplier >= self.least_noise_multiplier:
            detail = f"noise multiplier = {terms.noise_multiplier} < {self.least_noise_multiplier}"
            raise RefusedError(Refusal.NOISE, detail)
        for what, value, most in (
            ("rounds", terms.rounds, self.most_rounds),
            ("rounds_per_invitation", terms.rounds_per_invitation, self.most_rounds_per_invitation),
            ("classes", terms.classes, self.most_classes),
        ):
            if not value <= most:
                raise RefusedError(Refusal.EXTENT, f"{what} = {value} > most_{what} = {most}")
        if terms.mode.masks_sums:
            self._require_masks(terms)
        if terms.has_model:
            self._require_model(terms)

    def _require_model(self, terms: Terms) -> None:
        if terms.model not in self.models:
            allowed = ", ".join(sorted(self.models))
            raise RefusedError(Refusal.MODEL, f"model {terms.model!r} is not among {allowed}")
        if terms.task not in self.tasks:
            allowed = ", ".join(sorted(self.tasks))
            raise RefusedError(Refusal.TASK, f"task {terms.task!r} is not among {allowed}")

    def _require_masks(self, terms: Terms) -> None:
        if not self.notaries or self.signing_key is None:
            missing = "signing_key" if self.notaries else "notaries"
            raise RefusedError(Refusal.NOTARY, f"mode masked needs {missing} in this policy")
        if set(terms.notaries) != self.notaries:
            detail = f"the terms name {_listed(terms.notaries)}, not {_listed(self.notaries)}"
            raise RefusedError(Refusal.NOTARY, detail)
        for what, value, least in (
            ("threshold", terms.threshold, self.least_threshold),
            ("colluders", terms.colluders, self.least_colluders),
        ):
            if value is None or not value >= least:
                detail = f"{what} = {value} < least_{what} = {least}"
                raise RefusedError(Refusal.COLLUSION, detail)


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"{key[:16]}…" for key in sorted(keys))


def _plain(value: object) -> object:
    """Return a value of a policy as TOML has it."""
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    if isinstance(value, tuple):
        return list(map(str, value))
    if isinstance(value, Path | Unit):
        return str(value)
    return dict(vars(value)) if isinstance(value, Budget | Share) else value


def load_policy(path: Path) -> Policy:
    """Read a policy file; relative paths in it start at its folder.

    Raises:
        ValueError: Naming the file, the key and what is wrong with it.
    """
    read = load(Policy, path, f"The policy {path}")
    folder = path.parent
    return replace(
        read,
        # A name that is no path there is the name of a data set.
        data=str(folder / read.data) if (folder / read.data).exists() else read.data,
        ledger=folder / read.ledger,
        schema=read.schema and folder / read.schema,
        witness=read.witness and folder / read.witness,
        notaries=frozenset(notary_key(text, folder) for text in read.notaries),
        signing_key=read.signing_key and folder / read.signing_key,
        pretrained=tuple(folder / file for file in read.pretrained),
    )
