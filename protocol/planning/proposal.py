"""A planned experiment that can start: its terms, settings, a policy, and the commands to type."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from coinflower.accounting.composition.calibration import Split
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.mechanism import Round
from coinflower.protocol.masked_terms import masked_fields
from coinflower.protocol.planning.choices import CLIP_NORM, learning_rates, noise_share, update_for
from coinflower.protocol.planning.evaluation_price import EvaluationPrice, priced
from coinflower.protocol.planning.planner import Wishes
from coinflower.protocol.policy import Policy
from coinflower.protocol.query import QueryKind
from coinflower.protocol.strict import Option
from coinflower.protocol.terms import Terms
from coinflower.protocol.usual import usual_model, usual_rounds_per_invitation

_SCHEMA = "schema.toml"
_POLICY_COMMENTS = {
    "data_set": "the name that the ledger bears: choose your own",
    "data": "a file or folder; see the guide",
    "schema": "the file beside this one; yours must have its hash",
    "pretrained": "your copy of the public weights",
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
class Proposal:
    """An experiment that the policy beside it accepts.

    Attributes:
        wishes: What was wished for.
        terms: The public terms.
        epsilon: What they cost a client of the declared size, as its ledger will say.
        tuned_rate: The learning rate that served best on public data; None if nobody tried.
        evaluation: What evaluations on clients' records cost beside them; None if there are none.
    """

    wishes: Wishes
    terms: Terms
    epsilon: float
    tuned_rate: float | None = None
    evaluation: EvaluationPrice | None = None

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
        """The learning rate to begin with, in the plan's update."""
        if self.tuned_rate is not None:
            return self.tuned_rate
        return learning_rates(self.noise_share, self.wishes.parameters)[1]

    @property
    def learning_rate_range(self) -> list[float]:
        """The least and the largest learning rate worth trying."""
        least, _, largest = learning_rates(self.noise_share, self.wishes.parameters)
        return [least, largest]

    @property
    def update(self) -> dict[str, Any]:
        """How the server steps, by the names of its settings."""
        return {"learning_rate": self.learning_rate, **update_for(self.wishes.rounds)}

    @property
    def settings(self) -> str:
        """The server's settings file."""
        wishes = self.wishes
        data = str(Path(wishes.data).absolute()) if Path(wishes.data).exists() else wishes.data
        lines = [
            'state = "state"           # checkpoint, metrics, the model, the report',
            f"test_data = {_quoted(data)}     # public data that measures the model",
            f"least_clients = {max(1, wishes.clients // 2)}         # no step with fewer",
            f"expected_clients = {wishes.clients}      # the first round waits for this many",
        ]
        if wishes.schema is not None:
            lines.append(f"schema = {_quoted(_SCHEMA)}    # the file beside this one")
        if wishes.pretrained is not None:
            lines.append(f"pretrained = {_quoted(str(wishes.pretrained.absolute()))}")
        tables = {"terms": self.terms.to_fields(), "update": self.update}
        if self.evaluation is not None:
            tables["evaluation"] = {
                "every": self.evaluation.every,
                "noise_multiplier": self.evaluation.sigma,
            }
        return "\n".join([*lines, "", tomli_w.dumps(tables)])

    @property
    def policy(self) -> str:
        """A policy file that accepts the terms and nothing weaker; every owner's is alike."""
        wishes, weights = self.wishes, self.wishes.pretrained
        policy = Policy.for_terms(
            self.terms,
            data_set="MY-DATA",
            data="PATH/TO/MY-DATA",
            ledger=Path("ledger.db"),
            declared_size=wishes.d,
            budget=Budget(epsilon=wishes.epsilon, delta=wishes.delta),
            signing_key=Path("keys/MY-DATA.key") if self.terms.mode.masks_sums else None,
            schema=None if wishes.schema is None else Path(_SCHEMA),
            pretrained=() if weights is None else (Path("PATH/TO") / weights.name,),
            most_parameters=wishes.all_parameters,
        )
        if self.evaluation is not None:
            policy = replace(
                policy,
                queries=frozenset({QueryKind.EVALUATION}),
                least_noise_multiplier=min(policy.least_noise_multiplier, self.evaluation.sigma),
            )
        counted = f"public bound on the number of {wishes.unit}s"
        return policy.to_toml({**_POLICY_COMMENTS, "declared_size": counted})

    @property
    def commands(self) -> dict[str, list[str]]:
        """What to type: for a trial on this machine, at the server, notary, and each client."""
        terms, wishes = self.terms, self.wishes
        trial = (
            f"coinflower run --clients {min(wishes.clients, _MOST_TRIAL_CLIENTS)} "
            f"--data {shlex.quote(wishes.data)} --mode {terms.mode} -p {terms.p!r} -q {terms.q!r} "
            f"--sigma {terms.noise_multiplier!r} --delta {wishes.delta!r} --rounds {terms.rounds} "
            f"--model {shlex.quote(terms.model)} --clip-norm {terms.clip_norm!r}"
        )
        trial += "".join(f" --{name} {shlex.quote(value)}" for name, value in self._learning())
        trial += "".join(f" --{key.replace('_', '-')} {self.update[key]}" for key in self.update)
        trial += f" --cap {terms.cap!r}" * terms.is_capped
        if self.evaluation is not None:
            trial += f" --evaluate-every {self.evaluation.every}"
            trial += f" --evaluation-epsilon {self.evaluation.epsilon!r}"
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

    def _learning(self) -> Iterator[tuple[str, str]]:
        """Yield the options of a trial that say what is learned, where that is not the usual."""
        terms, wishes = self.terms, self.wishes
        if wishes.schema is not None:
            yield "schema", str(wishes.schema)
        if wishes.pretrained is not None:
            yield "pretrained", str(wishes.pretrained)
        for name in ("unit", "clipping", "task", "lora_rank"):
            if name in terms.to_fields():
                yield name.replace("_", "-"), str(getattr(terms, name))
        for part in terms.trained_parts:
            yield "trained-part", part
        options = (("model-option", terms.model_options), ("task-option", terms.task_options))
        for name, stated in options:
            for key, value in stated.items():
                yield name, f"{key}={_spelled(value)}"

    def figures(self) -> dict[str, Any]:
        """Return the proposal for programs."""
        return {
            "terms": self.terms.to_fields(),
            "terms_epsilon": self.epsilon,
            "schema": _whereabouts(self.wishes.schema),
            "pretrained": _whereabouts(self.wishes.pretrained),
            "noise_share": self.noise_share,
            "learning_rate": self.learning_rate,
            "learning_rate_range": self.learning_rate_range,
            "momentum": self.update["momentum"],
            "update": self.update,
            "total_epsilon": self.wishes.epsilon,
            "evaluation": None if self.evaluation is None else self.evaluation.figures(),
            "settings_toml": self.settings,
            "policy_toml": self.policy,
            "commands": self.commands,
        }

    def write(self, folder: Path, plan: str = "") -> list[Path]:
        """Write settings and policy into a folder; files that are there are left alone.

        Args:
            folder: The folder.
            plan: All figures of the plan as JSON, which a simulation takes; left out if empty.

        Raises:
            ValueError: One of them is there already.
        """
        contents = {"settings.toml": self.settings, "policy.toml": self.policy}
        contents |= {"plan.json": plan} if plan else {}
        schema = self.wishes.schema
        if schema is not None and schema.resolve() != (folder / _SCHEMA).resolve():
            contents[_SCHEMA] = schema.read_text(encoding="utf-8-sig")
        paths = [folder / name for name in contents]
        for path in paths:
            if path.exists():
                raise UserError(f"{path} exists already; choose another folder.")
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in zip(paths, contents.values(), strict=True):
            path.write_text(content, encoding="utf-8")
        return paths


def propose(
    wishes: Wishes,
    split: Split,
    *,
    tuned_rate: float | None = None,
    evaluation: EvaluationPrice | None = None,
) -> Proposal:
    """Return the experiment with p, q, cap and noise of a split, rounded to the side of privacy.

    Args:
        wishes: What is wished for.
        split: What was chosen.
        tuned_rate: The learning rate that served best on public data, if any was tried there.
        evaluation: The noise of evaluations on clients' records, and of the training beside them;
            None makes none.
    """
    q = _rounded(split.q, up=False)
    sigma = _rounded(split.sigma if evaluation is None else evaluation.training_sigma, up=True)
    if evaluation is not None:
        evaluation = replace(evaluation, sigma=_rounded(evaluation.sigma, up=True))
    while True:
        terms = Terms(
            experiment=wishes.experiment,
            mode=wishes.mode,
            p=split.p,
            q=q,
            clip_norm=CLIP_NORM,
            cap=split.cap,
            noise_multiplier=sigma,
            rounds=wishes.rounds,
            rounds_per_invitation=usual_rounds_per_invitation(wishes.rounds),
            unit=wishes.unit,
            **{**_usual_subject(wishes), **wishes.subject},
            **_masked(wishes, split, q, sigma),
        )
        cost = terms.round_cost(wishes.d)
        assert cost is not None
        epsilon = epsilon_after([(cost, wishes.rounds)], wishes.delta)
        if evaluation is not None:
            evaluation = priced(
                wishes.scheme,
                Round(split.p, q, wishes.d, sigma, split.cap),
                rounds=wishes.rounds,
                every=evaluation.every,
                sigma=evaluation.sigma,
                delta=wishes.delta,
            )
        if (epsilon if evaluation is None else evaluation.together) <= wishes.epsilon:
            return Proposal(
                wishes=wishes,
                terms=terms,
                epsilon=epsilon,
                tuned_rate=tuned_rate,
                evaluation=evaluation,
            )
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
        clip_norm=CLIP_NORM,
        noise_multiplier=sigma,
        notaries=wishes.notaries,
        threshold=wishes.threshold,
        colluders=wishes.colluders,
    )


def _rounded(value: float, *, up: bool) -> float:
    scale = 10.0 ** (_DIGITS - 1 - math.floor(math.log10(value)))
    whole = math.ceil(value * scale) if up else math.floor(value * scale)
    return float(f"{whole / scale:.{_DIGITS + 1}g}")


def _usual_subject(wishes: Wishes) -> dict[str, Any]:
    """Return model and classes of wishes that say no more."""
    shape = (1, 8, 8) if wishes.data == "digits" else (1, 28, 28)
    return {"model": wishes.model or usual_model(shape), "classes": wishes.classes}


def _whereabouts(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _spelled(value: Option) -> str:
    """Return an option's value as a person types it."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
