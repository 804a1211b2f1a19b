"""The policy of a data owner: what it allows, written in a TOML file of its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.entries import Budget
from coinflower.protocol.modes import Mode, parse_mode
from coinflower.protocol.terms import Terms
from coinflower.protocol.toml import read_toml, require_known_keys


class Refusal(Enum):
    """Why a client stays away. All that leaves the client; figures stay in its own log."""

    TERMS = "The terms are not understood here."
    MODE = "This client does not allow this mode."
    PARTICIPATION = "The participation probability p is larger than this client allows."
    SAMPLING = "The sampling rate q is larger than this client allows."
    CLIPPING = "The clip norm is larger than this client allows."
    NOISE = "The noise multiplier is smaller than this client allows."
    EXTENT = "The rounds, classes or parameters are more than this client allows."
    EXPERIMENTS = "This client takes part in no more experiments."
    PRICE = "The price of these terms takes this client too long to compute."
    BUDGET = "The planned rounds do not fit this client's privacy budget."
    LEDGER = "This client's ledger is not in order."
    SET_BACK = "This client's ledger was set back to an older one."
    MODEL = "This client cannot run this model on its data."
    PAUSED = "The owner has paused this client."
    LEFT = "The owner has left this experiment."


class RefusedError(Exception):
    """The owner's policy does not allow what was asked.

    Attributes:
        refusal: What may be told to the server.
    """

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super().__init__(detail)
        self.refusal = refusal


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which part of a public data set plays this client's own data (for trials)."""

    clients: int
    index: int
    how: str = "equal"
    seed: int = 0
    alpha: float = 0.5

    def __post_init__(self) -> None:
        """Check every field once."""
        validation.require_count("share.clients", self.clients, least=1)
        validation.require_count("share.index", self.index, least=0)
        validation.require_count("share.seed", self.seed, least=0)
        validation.require_positive("share.alpha", self.alpha)
        if self.index >= self.clients:
            raise UserError(f"share.index = {self.index} must lie in 0 to {self.clients - 1}.")


BUILT_IN_MODELS = frozenset({"digits", "paper-cnn"})
_MOST = (
    "most_rounds",
    "most_rounds_per_invitation",
    "most_classes",
    "most_parameters",
    "most_experiments",
    "most_open_experiments",
)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a data owner allows; nothing weaker is ever agreed to.

    Attributes:
        data_set: Name of the data set, as its ledger bears it.
        data: Name or path of the data.
        ledger: Path of the ledger.
        witness: Path, best on another disk, of a note of the ledger's last entry.
        declared_size: Public bound on the number of elements, fixed before a run.
        modes: Modes allowed.
        largest_p: Largest participation probability.
        largest_q: Largest sampling rate.
        largest_clip_norm: Largest clip norm.
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
        share: Part of a public data set that stands for this client's data.
        insecure_seed: Makes coins, samples and noise predictable; for tests only.
    """

    data_set: str
    data: str
    ledger: Path
    declared_size: int
    modes: frozenset[Mode]
    largest_p: float
    largest_q: float
    largest_clip_norm: float
    least_noise_multiplier: float
    budget: Budget
    most_rounds: int = 1_000_000
    most_rounds_per_invitation: int = 10_000
    most_classes: int = 10_000
    most_parameters: int = 10_000_000
    most_experiments: int = 10_000
    most_open_experiments: int = 100
    pricing_seconds: float = 30.0
    models: frozenset[str] = BUILT_IN_MODELS
    share: Share | None = None
    insecure_seed: int | None = None
    witness: Path | None = None

    def __post_init__(self) -> None:
        """Check every field once."""
        validation.require_count("declared_size", self.declared_size, least=1)
        validation.require_probability("largest_p", self.largest_p)
        validation.require_probability("largest_q", self.largest_q)
        if not self.largest_clip_norm > 0:
            raise UserError(f"largest_clip_norm = {self.largest_clip_norm} must be above 0.")
        if not self.least_noise_multiplier >= 0:
            raise UserError(
                f"least_noise_multiplier = {self.least_noise_multiplier} must be at least 0."
            )
        for field in _MOST:
            validation.require_count(field, getattr(self, field), least=1)
        validation.require_positive("pricing_seconds", self.pricing_seconds)
        if not self.modes:
            raise UserError(f"modes is empty; allow at least one of {', '.join(Mode)}.")
        if not self.models:
            raise UserError("models is empty; list the models that may run on this data.")
        if self.insecure_seed is not None:
            validation.require_count("insecure_seed", self.insecure_seed, least=0)

    def require(self, terms: Terms) -> None:
        """Refuse terms that are weaker than this policy.

        Raises:
            RefusedError: With the reason; its text has the figures and is for the owner only.
        """
        if terms.mode not in self.modes:
            allowed = ", ".join(sorted(self.modes))
            raise RefusedError(Refusal.MODE, f"mode {terms.mode} is not among {allowed}")
        # Written so that nan, which is neither above nor below a limit, is refused.
        if not terms.p <= self.largest_p:
            raise RefusedError(Refusal.PARTICIPATION, f"p = {terms.p} > {self.largest_p}")
        if not terms.q <= self.largest_q:
            raise RefusedError(Refusal.SAMPLING, f"q = {terms.q} > {self.largest_q}")
        if terms.mode.is_private and not terms.clip_norm <= self.largest_clip_norm:
            detail = f"clip norm = {terms.clip_norm} > {self.largest_clip_norm}"
            raise RefusedError(Refusal.CLIPPING, detail)
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
        if terms.model not in self.models:
            allowed = ", ".join(sorted(self.models))
            raise RefusedError(Refusal.MODEL, f"model {terms.model!r} is not among {allowed}")


_REQUIRED = ("data_set", "data", "ledger", "declared_size", "modes", "least_noise_multiplier")
_LIMITS = ("largest_p", "largest_q", "largest_clip_norm")


def load_policy(path: Path) -> Policy:
    """Read a policy file; relative paths in it start at its folder.

    Raises:
        ValueError: Naming the file, the key and what is wrong with it.
    """
    table = read_toml(path)
    where = f"The policy {path}"
    optional = (*_MOST, "pricing_seconds", "insecure_seed")
    known = (*_REQUIRED, *_LIMITS, *optional, "budget", "models", "share", "witness")
    require_known_keys(table, known, (*_REQUIRED, *_LIMITS, "budget"), where)
    budget = _table(table, "budget", ("epsilon", "delta"), ("epsilon", "delta"), where)
    share = {}
    if "share" in table:
        fields = ("clients", "index", "how", "seed", "alpha")
        share = _table(table, "share", fields, ("clients", "index"), where)
    try:
        _refuse_wrong_types({**table, **budget, **share})
        return Policy(
            data_set=table["data_set"],
            data=_data_location(path.parent, table["data"]),
            ledger=path.parent / table["ledger"],
            declared_size=table["declared_size"],
            modes=frozenset(parse_mode(mode) for mode in table["modes"]),
            largest_p=table["largest_p"],
            largest_q=table["largest_q"],
            largest_clip_norm=table["largest_clip_norm"],
            least_noise_multiplier=table["least_noise_multiplier"],
            budget=Budget(**budget),
            models=frozenset(table.get("models", BUILT_IN_MODELS)),
            share=Share(**share) if share else None,
            witness=path.parent / table["witness"] if "witness" in table else None,
            **{key: table[key] for key in optional if key in table},
        )
    except (TypeError, ValueError) as error:
        raise UserError(f"{where} cannot be used: {error}") from None


def _refuse_wrong_types(values: dict[str, Any]) -> None:
    """Refuse what Python would take for something else: true for 1, a text for a list."""
    for key, value in values.items():
        if key in ("modes", "models"):
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise UserError(f"{key} must be a list of texts.")
        elif key in ("data_set", "data", "ledger", "witness", "how"):
            if not isinstance(value, str) or not value:
                raise UserError(f"{key} must be a text that is not empty.")
        elif key not in ("budget", "share") and (
            isinstance(value, bool) or not isinstance(value, int | float)
        ):
            raise UserError(f"{key} = {value!r} must be a number.")


def _table(
    table: dict[str, Any], name: str, known: tuple[str, ...], required: tuple[str, ...], where: str
) -> dict[str, Any]:
    inner = table[name]
    if not isinstance(inner, dict):
        raise UserError(f"{where}: [{name}] must be a table.")
    require_known_keys(inner, known, required, f"{where}, [{name}],")
    return inner


def _data_location(folder: Path, data: str) -> str:
    """Return a path relative to the policy's folder if there is one, else the name as it is."""
    return str(folder / data) if (folder / data).exists() else data
