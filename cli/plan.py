"""The command that plans an experiment: from wishes to terms, a policy and what to type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click
import typer

from coinflower.accounting import validation
from coinflower.accounting.analyses.names import scheme_class
from coinflower.accounting.composition.calibration import Split, splits_for_batch
from coinflower.accounting.errors import UserError
from coinflower.cli.output import JsonFlag, number, print_json, print_table
from coinflower.cli.privacy import SCHEME_HELP, warn_of_scheme
from coinflower.deploy.terminal import say
from coinflower.protocol.modes import PRIVATE_MODES, Mode, parse_mode
from coinflower.protocol.planner import (
    ACCURACY,
    PRIVACY,
    Proposal,
    Wishes,
    batch_for,
    propose,
    suggested_delta,
)

Answer = TypeVar("Answer")


def plan(
    batch: Annotated[
        float | None, typer.Option("--batch", help="Mean number of records in a round.")
    ] = None,
    clients: Annotated[int | None, typer.Option("--clients", help="Number of clients.")] = None,
    d: Annotated[int | None, typer.Option("-d", help="Records of the largest client.")] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Privacy loss ε of all rounds.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option("--delta", help="δ, strictly between 0 and 1.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Number of rounds.")] = None,
    largest_p: Annotated[
        float | None,
        typer.Option("--largest-p", help="Largest participation probability (default: 1)."),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help=f"{', '.join(list(Mode)[:-1])} (default: trusted).")
    ] = None,
    scheme: Annotated[
        str | None,
        typer.Option("--scheme", help=f"Use this instead of the mode's own. {SCHEME_HELP}"),
    ] = None,
    data: Annotated[str, typer.Option(help="Public test data; a trial run trains on it too.")] = (
        "digits"
    ),
    model: Annotated[
        str | None, typer.Option(help="digits, paper-cnn or package.module:function.")
    ] = None,
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    experiment: Annotated[str, typer.Option(help="Name of the experiment.")] = "experiment-1",
    out: Annotated[
        Path | None, typer.Option(help="Folder for settings.toml and policy.toml.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Ask for what is not given.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Find p, q and σ with the least noise; write terms, a policy and the commands to type."""
    given: dict[str, Any] = {
        **{"clients": clients, "d": d, "rounds": rounds, "epsilon": epsilon, "delta": delta},
        **{"largest_p": largest_p, "mode": None if mode is None else parse_mode(mode)},
    }
    if interactive:
        given = _ask_for_missing(given)
    else:
        _require_all({**given, "batch": batch})
    chosen = {key: value for key, value in given.items() if value is not None}
    wishes = Wishes(**chosen, data=data, model=model, classes=classes, experiment=experiment)
    if batch is None:
        batch = _ask_for_batch(wishes)
    kind = wishes.scheme if scheme is None else scheme_class(scheme)
    found = splits_for_batch(
        kind,
        batch_size=batch,
        clients=wishes.clients,
        d=wishes.d,
        epsilon=wishes.epsilon,
        delta=wishes.delta,
        rounds=wishes.rounds,
        largest_p=wishes.largest_p,
        **({"count": 1} if not wishes.mode.flips_coins else {}),
    )
    warn_of_scheme(kind)
    # Noise that another analysis chose may be too little for what the mode is charged.
    proposal = propose(wishes, found[0]) if kind is wishes.scheme else None
    written = _write(proposal, out)
    if as_json:
        print_json({**_figures(wishes, kind.name, batch, found, proposal), "files": written})
        return
    _print_splits(wishes, kind.title, batch, found)
    if proposal is not None and (interactive or out is not None):
        _print_proposal(proposal, written)


def _require_all(given: dict[str, Any]) -> None:
    options = {"clients": "--clients", "d": "-d", "epsilon": "--epsilon", "delta": "--delta"}
    options |= {"rounds": "--rounds", "batch": "--batch"}
    missing = [option for key, option in options.items() if given[key] is None]
    if missing:
        raise UserError(f"plan needs {', '.join(missing)}; use --interactive to be asked.")


def _ask_for_missing(given: dict[str, Any]) -> dict[str, Any]:
    """Ask, in the order in which people know the answers."""
    found = dict(given)

    def ask(key: str, question: str, default: object, parse: Callable[[str], object]) -> None:
        if found[key] is None:
            found[key] = _ask(question, default, parse)

    ask("clients", "How many clients", 10, lambda text: _count("clients", text))
    ask(
        "d",
        "How many records does the largest client have",
        500,
        lambda text: _count("records", text),
    )
    ask("rounds", "How many rounds", 100, lambda text: _count("rounds", text))
    modes = "; ".join(f"{each} ({each.facts.noise})" for each in PRIVATE_MODES)
    question = f"Who adds noise: {modes}"
    ask("mode", question, "trusted", _private_mode)
    if not found["mode"].flips_coins and found["largest_p"] is None:
        found["largest_p"] = 1.0
    question = "Largest share of rounds that a client may take part in (0.5 is every other round)"
    ask("largest_p", question, 0.5, lambda text: _share("the share", text))
    levels = ", ".join(f"{name} (ε = {value:g})" for name, value in PRIVACY.items())
    ask("epsilon", f"How private: {levels}, or ε as a number", "balanced", _privacy)
    delta = suggested_delta(found["clients"], found["d"])
    ask("delta", "δ (well below one over the number of all records)", f"{delta:g}", _delta)
    return found


def _ask_for_batch(wishes: Wishes) -> float:
    question = f"How accurate: {', '.join(ACCURACY)}, or the mean number of records in a round"
    answer = _ask(question, "balanced", lambda text: _accuracy(text, wishes.largest_batch))
    return batch_for(wishes, answer) if isinstance(answer, str) else answer


def _ask(question: str, default: object, parse: Callable[[str], Answer]) -> Answer:
    """Ask until the answer can be used; a bad one gets a sentence that says why."""

    def convert(text: str) -> Answer:
        try:
            return parse(text.strip())
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    answer: Answer = typer.prompt(question, default=str(default), value_proc=convert, err=True)
    return answer


def _count(field: str, text: str) -> int:
    try:
        value = int(text.replace(",", ""))
    except ValueError:
        raise UserError(
            f"{field} = {text!r} is not a whole number; give one, such as 100."
        ) from None
    validation.require_count(field, value, least=1)
    return value


def _number(text: str, example: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{text!r} is not understood; give {example}.") from None


def _share(field: str, text: str) -> float:
    value = _number(text, "a number above 0 and up to 1, such as 0.5")
    validation.require_probability(field, value)
    return value


def _delta(text: str) -> float:
    value = _number(text, "a small number, such as 1e-5")
    validation.require_delta(value)
    return value


def _privacy(text: str) -> float:
    value = PRIVACY.get(text) or _number(text, f"{', '.join(PRIVACY)} or a number, such as 2.5")
    validation.require_positive("epsilon", value)
    return value


def _accuracy(text: str, largest_batch: float) -> str | float:
    if text in ACCURACY:
        return text
    value = _number(text, f"{', '.join(ACCURACY)} or a number, such as 64")
    validation.require_positive("batch", value)
    if value > largest_batch:
        raise UserError(
            f"batch = {value:g} is more than the {largest_batch:g} records that take part on "
            "average; choose a smaller batch."
        )
    return value


def _private_mode(text: str) -> Mode:
    mode = parse_mode(text)
    if not mode.is_private:
        raise UserError("mode = 'none' protects nothing; choose another.")
    return mode


def _write(proposal: Proposal | None, out: Path | None) -> list[str]:
    if out is None:
        return []
    if proposal is None:
        raise UserError("--out needs noise by the mode's own scheme; leave out --scheme.")
    return [str(path) for path in proposal.write(out)]


def _figures(
    wishes: Wishes, scheme: str, batch: float, found: list[Split], proposal: Proposal | None
) -> dict[str, Any]:
    best = found[0]
    return {
        **{"p": best.p, "q": best.q, "sigma": best.sigma, "epsilon": best.epsilon},
        **{"delta": wishes.delta, "rounds": wishes.rounds, "scheme": scheme, "d": wishes.d},
        **{"batch": batch, "clients": wishes.clients, "largest_p": wishes.largest_p},
        "mode": str(wishes.mode),
        "splits": [vars(split) for split in found],
        **({} if proposal is None else proposal.figures()),
    }


def _print_splits(wishes: Wishes, title: str, batch: float, found: list[Split]) -> None:
    print_table(
        f"Mean batch {batch:g} from {wishes.clients:,} clients of {wishes.d:,} ({title})",
        ["p", "q", "σ", "ε", "clients per round", "noise / batch"],
        [
            [each.p, each.q, each.sigma, each.epsilon, each.p * wishes.clients, each.sigma / batch]
            for each in found
        ],
    )


def _print_proposal(proposal: Proposal, written: list[str]) -> None:
    terms = proposal.terms
    say(
        f"Proposed: p = {terms.p:g}, q = {terms.q:g}, σ = {terms.noise_multiplier:g}: "
        f"ε = {number(proposal.epsilon)} at δ = {proposal.wishes.delta:g} after {terms.rounds:,} "
        f"rounds, as each client's ledger will say (scheme {proposal.wishes.scheme.name})."
    )
    say(
        f"A round has {proposal.batch:.4g} records on average. Each coordinate of their mean "
        f"gradient, whose length is at most {terms.clip_norm:g}, carries noise of "
        f"{proposal.noise_share:.3g}."
    )
    if written:
        say(f"Written: {', '.join(written)}")
    else:
        for name, text in (("settings.toml", proposal.settings), ("policy.toml", proposal.policy)):
            say(f"\n# {name}\n{text}")
    headings = {
        "trial": "Try it on this machine first (its batches and ε are those of the trial's data):",
        "server": "At the server, with settings.toml; allow each client once its key is there:",
        "client": "At each client, with policy.toml (fill in your names) and the server's ca.pem:",
    }
    for part, lines in proposal.commands.items():
        say(f"\n{headings[part]}")
        for line in lines:
            say(f"  {line}")
