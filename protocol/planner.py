"""From wishes to an experiment that can start: terms, settings, a policy, and the commands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coinflower.accounting import validation
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.composition.calibration import Split, least_sigma
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.masked import chosen_shares
from coinflower.protocol.choices import MOMENTUM, learning_rates, noise_share
from coinflower.protocol.masked_terms import masked_fields
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Policy
from coinflower.protocol.terms import (
    Terms,
    usual_model,
    usual_rounds_per_invitation,
)

PRIVACY = {"strict": 1.0, "balanced": 3.0, "loose": 8.0}
"""Wishes for privacy, as ε of the whole experiment."""
ACCURACY = {"fast": 3.0, "balanced": 1.5, "accurate": 1.1}
"""Wishes for accuracy: how many times the least possible noise on the mean gradient is all right.

The least is that of the largest batch; smaller batches are faster and noisier.
"""

USUAL_PARAMETERS = 100_000
"""Parameters of a model that is not known here."""

_CLIP_NORM = 1.0
_POLICY_COMMENTS = {
    "data_set": "the name that the ledger bears: choose your own",
    "data": "a file or folder; see the guide",
    "declared_size": "public bound on the number of records",
    "[budget]": "over all experiments on this data, ever",
}
_NOTARY_COMMANDS = [
    "coinflower notary create",
    "coinflower notary allow MY-DATA.pub",
    "coinflower notary run --superlink SERVER:8443 --root-certificates ca.pem",
]
_MOST_TRIAL_CLIENTS = 20
_DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What an experiment is to be.

    Attributes:
        clients: Number of clients.
        d: Records of the largest client.
        rounds: Number of rounds.
        epsilon: What a record may lose in all.
        delta: At this δ.
        largest_p: How often a client can take part at most.
        mode: Who adds noise.
        data: Public data that measures accuracy, and that a trial is run on.
        model: Model; chosen by the data if None.
        classes: Number of classes.
        parameters: Number of the model's parameters, which says how long a step's noise is.
        experiment: Name of the experiment.
        notaries: Public keys of the notaries of mode masked.
        threshold: In that mode, how many clients an opened sum has at least; None chooses.
        colluders: How many of them may collude; None chooses.
    """

    clients: int
    d: int
    rounds: int
    epsilon: float
    delta: float
    largest_p: float = 1.0
    mode: Mode = Mode.TRUSTED
    data: str = "digits"
    model: str | None = None
    classes: int = 10
    parameters: int = USUAL_PARAMETERS
    experiment: str = "experiment-1"
    notaries: tuple[str, ...] = ()
    threshold: int | None = None
    colluders: int | None = None

    def __post_init__(self) -> None:
        """Check every field once; the terms check the others."""
        validation.require_count("clients", self.clients, least=1)
        validation.require_count("d", self.d, least=1)
        validation.require_count("rounds", self.rounds, least=1)
        validation.require_count("parameters", self.parameters, least=1)
        validation.require_epsilon(self.epsilon)
        validation.require_delta(self.delta)
        validation.require_probability("largest p", self.largest_p)
        if not self.mode.is_private:
            raise UserError("mode = 'none' protects nothing, so there is nothing to plan.")
        if not self.mode.flips_coins and self.largest_p != 1:
            raise UserError(
                f"largest p = {self.largest_p} must be 1 in mode {self.mode}: everybody takes part."
            )
        self.honest  # noqa: B018 - checks threshold and colluders

    @property
    def has_notary(self) -> bool:
        """Whether the terms can be written down: in mode masked they name a notary."""
        return bool(self.notaries) or not self.mode.masks_sums

    @property
    def honest(self) -> int:
        """How many clients' noises make the one that is charged."""
        if not self.mode.masks_sums:
            return 1
        threshold, colluders = chosen_shares(self.clients, self.threshold, self.colluders)
        return threshold - colluders

    @property
    def scheme(self) -> type[Analysis]:
        """The analysis that charges these rounds."""
        scheme = self.mode.scheme
        assert scheme is not None
        return scheme

    @property
    def largest_batch(self) -> float:
        """Mean batch with all the records of everybody who takes part."""
        return self.largest_p * self.clients * self.d


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """An experiment that the policy beside it accepts.

    Attributes:
        wishes: What was wished for.
        terms: The public terms.
        epsilon: What they cost a client of the declared size, as its ledger will say.
    """

    wishes: Wishes
    terms: Terms
    epsilon: float

    @property
    def batch(self) -> float:
        """Mean number of records in a round."""
        return self.terms.p * self.terms.q * self.wishes.clients * self.wishes.d

    @property
    def noise_share(self) -> float:
        """Noise on each coordinate of the mean gradient, whose length is at most the clip norm."""
        terms = self.terms
        return noise_share(
            terms.mode,
            clients=self.wishes.clients,
            p=terms.p,
            sigma=terms.noise_multiplier,
            batch=self.batch,
            honest=terms.honest_shares,
        )

    @property
    def learning_rate(self) -> float:
        """The learning rate to begin with, at the plan's momentum."""
        return learning_rates(self.noise_share, self.wishes.parameters)[1]

    @property
    def learning_rate_range(self) -> list[float]:
        """The least and the largest learning rate worth trying."""
        least, _, largest = learning_rates(self.noise_share, self.wishes.parameters)
        return [least, largest]

    @property
    def settings(self) -> str:
        """The server's settings file."""
        lines = [
            'state = "state"           # checkpoint, metrics, the model, the report',
            f"test_data = {_quoted(self.wishes.data)}     # public data that measures accuracy",
            f"least_clients = {max(1, self.wishes.clients // 2)}         # no step with fewer",
            f"expected_clients = {self.wishes.clients}      # the first round waits for this many",
            "",
            "[terms]",
        ]
        fields = self.terms.to_fields()
        lines += [f"{key} = {_toml(fields[key])}" for key in fields]
        lines += ["", "[update]", f"learning_rate = {self.learning_rate!r}"]
        return "\n".join([*lines, f"momentum = {MOMENTUM!r}", ""])

    @property
    def policy(self) -> str:
        """A policy file that accepts the terms and nothing weaker; every owner's is alike."""
        wishes = self.wishes
        policy = Policy.for_terms(
            self.terms,
            data_set="MY-DATA",
            data="PATH/TO/MY-DATA",
            ledger=Path("ledger.db"),
            declared_size=wishes.d,
            budget=Budget(epsilon=wishes.epsilon, delta=wishes.delta),
            signing_key=Path("keys/MY-DATA.key") if self.terms.mode.masks_sums else None,
        )
        return policy.to_toml(_POLICY_COMMENTS)

    @property
    def commands(self) -> dict[str, list[str]]:
        """What to type: for a trial on this machine, at the server, notary, and each client."""
        terms, wishes = self.terms, self.wishes
        trial = (
            f"coinflower run --clients {min(wishes.clients, _MOST_TRIAL_CLIENTS)} "
            f"--data {shlex.quote(wishes.data)} --mode {terms.mode} -p {terms.p!r} -q {terms.q!r} "
            f"--sigma {terms.noise_multiplier!r} --delta {wishes.delta!r} --rounds {terms.rounds} "
            f"--model {shlex.quote(terms.model)} --learning-rate {self.learning_rate!r} "
            f"--momentum {MOMENTUM!r}" + (f" --cap {terms.cap!r}" * terms.is_capped)
        )
        notary = {"notary": _NOTARY_COMMANDS} if terms.mode.masks_sums else {}
        return {
            "trial": [trial],
            "server": [
                "coinflower keys init keys --name SERVER",
                "coinflower server run settings.toml --keys keys --listen 0.0.0.0:8443 --resume",
                "coinflower server allow MY-DATA.pub",
            ],
            **notary,
            "client": [
                "coinflower keys client keys MY-DATA",
                "coinflower ledger create ledger.db --data-set MY-DATA",
                "coinflower client policy.toml --superlink SERVER:8443 "
                "--root-certificates ca.pem --private-key keys/MY-DATA.key",
            ],
        }

    def figures(self) -> dict[str, Any]:
        """Return the proposal for programs."""
        return {
            "terms": self.terms.to_fields(),
            "terms_epsilon": self.epsilon,
            "noise_share": self.noise_share,
            "learning_rate": self.learning_rate,
            "learning_rate_range": self.learning_rate_range,
            "momentum": MOMENTUM,
            "settings_toml": self.settings,
            "policy_toml": self.policy,
            "commands": self.commands,
        }

    def write(self, folder: Path) -> list[Path]:
        """Write settings and policy into a folder; files that are there are left alone.

        Raises:
            ValueError: One of them is there already.
        """
        contents = {"settings.toml": self.settings, "policy.toml": self.policy}
        paths = [folder / name for name in contents]
        for path in paths:
            if path.exists():
                raise UserError(f"{path} exists already; choose another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in zip(paths, contents.values(), strict=True):
            path.write_text(content)
        return paths


def suggested_delta(clients: int, d: int) -> float:
    """Return the largest power of ten that is at most a tenth of one over all records.

    At one over the number of records, publishing a random one of them would be allowed.
    """
    return float(f"1e-{1 + math.ceil(math.log10(clients * d))}")


def batch_for(wishes: Wishes, accuracy: str) -> float:
    """Return the least mean batch, by halving, whose noise meets a wish for accuracy."""
    slack = ACCURACY[accuracy]
    candidates = _halved_batches(wishes)
    batch, noise = next(candidates)
    most = slack * noise
    for smaller, noisier in candidates:
        if noisier > most:
            break
        batch = smaller
    return batch


def _halved_batches(wishes: Wishes) -> Iterator[tuple[float, float]]:
    """Yield mean batches from the largest down, each with its noise over batch."""
    batch = wishes.largest_batch
    while batch >= 1:
        sigma = least_sigma(
            wishes.scheme,
            p=wishes.largest_p,
            q=batch / wishes.largest_batch,
            d=wishes.d,
            epsilon=wishes.epsilon,
            delta=wishes.delta,
            rounds=wishes.rounds,
        )
        yield batch, sigma / batch
        batch /= 2


def propose(wishes: Wishes, split: Split) -> Proposal:
    """Return the experiment with p, q, cap and noise of a split, rounded to the side of privacy."""
    q = _rounded(split.q, up=False)
    sigma = _rounded(split.sigma, up=True)
    while True:
        terms = Terms(
            experiment=wishes.experiment,
            mode=wishes.mode,
            p=split.p,
            q=q,
            clip_norm=_CLIP_NORM,
            cap=split.cap,
            noise_multiplier=sigma,
            rounds=wishes.rounds,
            rounds_per_invitation=usual_rounds_per_invitation(wishes.rounds),
            model=wishes.model
            or usual_model((1, 8, 8) if wishes.data == "digits" else (1, 28, 28)),
            classes=wishes.classes,
            **_masked(wishes, split, q, sigma),
        )
        cost = terms.round_cost(wishes.d)
        assert cost is not None
        epsilon = epsilon_after([(cost, wishes.rounds)], wishes.delta)
        if epsilon <= wishes.epsilon:
            return Proposal(wishes=wishes, terms=terms, epsilon=epsilon)
        # The computed ε is uneven by a rounding here and there.
        sigma = _rounded(sigma * (1 + 10.0**-_DIGITS), up=True)


def _masked(wishes: Wishes, split: Split, q: float, sigma: float) -> dict[str, Any]:
    """Return what mode masked adds to the terms."""
    if not wishes.mode.masks_sums:
        return {}
    return masked_fields(
        sizes=[wishes.d] * wishes.clients,
        q=q,
        cap=split.cap,
        clip_norm=_CLIP_NORM,
        noise_multiplier=sigma,
        notaries=wishes.notaries,
        threshold=wishes.threshold,
        colluders=wishes.colluders,
    )


def _rounded(value: float, *, up: bool) -> float:
    scale = 10.0 ** (_DIGITS - 1 - math.floor(math.log10(value)))
    whole = math.ceil(value * scale) if up else math.floor(value * scale)
    return float(f"{whole / scale:.{_DIGITS + 1}g}")


def _toml(value: object) -> str:
    return _quoted(value) if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
