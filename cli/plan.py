"""The command that plans an experiment: from wishes to terms, a policy and what to type."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.names import scheme_class
from coinflower.accounting.composition.calibration import splits_for_batch
from coinflower.accounting.composition.secrecy import pays_in_epsilon, why_no_secret
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_up
from coinflower.cli.masked_options import Colluders, Threshold
from coinflower.cli.output import JsonFlag, number, print_json, print_table
from coinflower.cli.plan_questions import ask_for_batch, ask_for_missing
from coinflower.cli.privacy import SCHEME_HELP, warn_of_scheme
from coinflower.deploy.terminal import say, warn
from coinflower.protocol.choices import MOMENTUM, Choice, caps_for, ranked, weighing
from coinflower.protocol.choices import chosen as chosen_of
from coinflower.protocol.modes import Mode, parse_mode
from coinflower.protocol.notary_key import notary_key
from coinflower.protocol.planner import (
    USUAL_PARAMETERS,
    Proposal,
    Wishes,
    batch_for,
    propose,
)
from coinflower.protocol.terms import usual_model

_UNASKED = "accurate"


def plan(
    batch: Annotated[
        float | None,
        typer.Option("--batch", help="Mean number of records in a round (default: chosen)."),
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
    cap: Annotated[
        float | None,
        typer.Option(help="Cap on a client's sum in clip norms; inf for none (default: chosen)."),
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
    notary: Annotated[
        list[str] | None,
        typer.Option(help="A notary's public key or notary.pub, for mode masked; repeatable."),
    ] = None,
    threshold: Threshold = None,
    colluders: Colluders = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for settings.toml and policy.toml.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Ask for what is not given.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Find p, q, cap and σ for a budget; write terms, a policy and the commands to type."""
    given: dict[str, Any] = {
        **{"clients": clients, "d": d, "rounds": rounds, "epsilon": epsilon, "delta": delta},
        **{"largest_p": largest_p, "mode": None if mode is None else parse_mode(mode)},
    }
    if interactive:
        given = ask_for_missing(given)
    else:
        _require_all(given)
    chosen = {key: value for key, value in given.items() if value is not None}
    wishes = Wishes(
        **chosen,
        data=data,
        model=model,
        classes=classes,
        parameters=_parameters(
            model or usual_model((1, 8, 8) if data == "digits" else (1, 28, 28)), classes
        ),
        experiment=experiment,
        notaries=tuple(notary_key(text, Path()) for text in notary or ()),
        threshold=threshold,
        colluders=colluders,
    )
    if batch is None:
        batch = ask_for_batch(wishes) if interactive else batch_for(wishes, _UNASKED)
    kind = wishes.scheme if scheme is None else scheme_class(scheme)
    caps = caps_for(kind) if cap is None else (cap,)
    found = ranked(
        splits_for_batch(
            kind,
            batch_size=batch,
            clients=wishes.clients,
            d=wishes.d,
            epsilon=wishes.epsilon,
            delta=wishes.delta,
            rounds=wishes.rounds,
            largest_p=wishes.largest_p,
            caps=caps,
            **({"count": 1} if not wishes.mode.flips_coins else {}),
        ),
        mode=wishes.mode,
        clients=wishes.clients,
        d=wishes.d,
        batch=batch,
        honest=wishes.honest,
    )
    best = chosen_of(found)
    warn_of_scheme(kind)
    # Noise that another analysis chose may be too little for what the mode is charged.
    known = kind is wishes.scheme and wishes.has_notary
    proposal = propose(wishes, best.split) if known else None
    if out is not None and not wishes.has_notary:
        raise UserError(
            "--out needs --notary in mode masked, which the terms name; coinflower notary create "
            "makes one."
        )
    written = _write(proposal, out)
    pays = _secret_coin_pays(kind, wishes, best)
    if as_json:
        figures = _figures(wishes, kind.name, batch, found, best, proposal)
        print_json({**figures, "secret_coin_pays": pays, "files": written})
        return
    _print_choices(wishes, kind.title, batch, found)
    sentence = weighing(found, best)
    if sentence is not None:
        say(sentence)
    if pays is False and best.split.p < 1:
        say(why_no_secret(_round_of(best, wishes.d)))
    if proposal is not None and (interactive or out is not None):
        _print_proposal(proposal, written)


def _parameters(model: str, classes: int) -> int:
    """Return how many parameters a model has; a usual number if it is not installed here."""
    from coinflower.learning import build_model, count_parameters

    try:
        return count_parameters(build_model(model, classes=classes))
    except ValueError as error:
        warn(f"{error}: its learning rate is that of a model of {USUAL_PARAMETERS:,} parameters.")
        return USUAL_PARAMETERS


def _round_of(choice: Choice, d: int) -> Round:
    split = choice.split
    return Round(split.p, split.q, d, split.sigma, split.cap)


def _secret_coin_pays(kind: type[Analysis], wishes: Wishes, best: Choice) -> bool | None:
    """Return whether secrecy of the coin lowers ε; None for schemes that do not count on it."""
    if not (kind.hides_coin and kind.is_chargeable):
        return None
    cost = kind(_round_of(best, wishes.d))
    return pays_in_epsilon(cost, wishes.rounds, wishes.delta)


def _require_all(given: dict[str, Any]) -> None:
    options = {"clients": "--clients", "d": "-d", "epsilon": "--epsilon", "delta": "--delta"}
    options |= {"rounds": "--rounds"}
    missing = [option for key, option in options.items() if given[key] is None]
    if missing:
        raise UserError(f"plan needs {', '.join(missing)}; use --interactive to be asked.")


def _write(proposal: Proposal | None, out: Path | None) -> list[str]:
    if out is None:
        return []
    if proposal is None:
        raise UserError("--out needs noise by the mode's own scheme; leave out --scheme.")
    return [str(path) for path in proposal.write(out)]


def _figures(
    wishes: Wishes,
    scheme: str,
    batch: float,
    found: list[Choice],
    best: Choice,
    proposal: Proposal | None,
) -> dict[str, Any]:
    return {
        **best.figures(),
        **{"delta": wishes.delta, "rounds": wishes.rounds, "scheme": scheme, "d": wishes.d},
        **{"batch": batch, "clients": wishes.clients, "largest_p": wishes.largest_p},
        "mode": str(wishes.mode),
        "splits": [choice.figures() for choice in found],
        "weighing": weighing(found, best),
        **({} if proposal is None else proposal.figures()),
    }


def _print_choices(wishes: Wishes, title: str, batch: float, found: list[Choice]) -> None:
    best = found[0].signal_to_noise
    print_table(
        f"Mean batch {batch:g} from {wishes.clients:,} clients of {wishes.d:,} ({title})",
        ["p", "q", "cap", "σ", "ε", "messages", "signal", "noise / signal"],
        [
            [
                *(f"{value:.3g}" for value in (each.split.p, each.split.q)),
                "none" if math.isinf(each.split.cap) else f"{each.split.cap:g}",
                *(rounded_up(value) for value in (each.split.sigma, each.split.epsilon)),
                f"{each.messages:.3g}",
                f"{each.signal:.0%}",
                f"×{best / each.signal_to_noise:.3g}",
            ]
            for each in found
        ],
    )


def _print_proposal(proposal: Proposal, written: list[str]) -> None:
    terms = proposal.terms
    capped = f"cap = {terms.cap:g}, " if terms.is_capped else ""
    least, largest = proposal.learning_rate_range
    say(
        f"Proposed: p = {terms.p:g}, q = {terms.q:g}, {capped}σ = {terms.noise_multiplier:g}: "
        f"ε = {number(proposal.epsilon)} at δ = {proposal.wishes.delta:g} after {terms.rounds:,} "
        f"rounds, as each client's ledger will say (scheme {proposal.wishes.scheme.name})."
    )
    say(
        f"A round has {proposal.batch:.4g} records on average. Each coordinate of their mean "
        f"gradient, whose length is at most {terms.clip_norm:g}, carries noise of "
        f"{proposal.noise_share:.3g}. Start with a learning rate of {proposal.learning_rate:g} at "
        f"momentum {MOMENTUM:g}; the best is likely between {least:g} and {largest:g}."
    )
    if written:
        say(f"Written: {', '.join(written)}")
    else:
        for name, text in (("settings.toml", proposal.settings), ("policy.toml", proposal.policy)):
            say(f"\n# {name}\n{text}")
    headings = {
        "trial": "Try it on this machine first (its batches and ε are those of the trial's data):",
        "server": "At the server, with settings.toml; allow each client once its key is there:",
        "notary": "At the notary, before all else; count each client's key once it is there:",
        "client": "At each client, with policy.toml (fill in your names) and the server's ca.pem:",
    }
    for part, lines in proposal.commands.items():
        say(f"\n{headings[part]}")
        for line in lines:
            say(f"  {line}")
