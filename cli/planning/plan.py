"""The command that plans an experiment: from wishes to terms, a policy and what to type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coinflower.accounting import validation
from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.names import scheme_class
from coinflower.accounting.composition.secrecy import pays_in_epsilon, why_no_secret
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_up
from coinflower.cli.options.bundles import bundling
from coinflower.cli.options.learning import LearningOptions
from coinflower.cli.options.masked import Colluders, Threshold
from coinflower.cli.options.model import RowShape
from coinflower.cli.output import JsonFlag, as_json_text, print_json
from coinflower.cli.planning.proxy import load_proxy, tune_on
from coinflower.cli.planning.questions import ask_for_batch, ask_for_missing
from coinflower.cli.planning.subject import load_public, subject_of_plan
from coinflower.cli.planning.tables import (
    print_batches,
    print_choices,
    print_evaluations,
    print_grid,
    print_proposal,
)
from coinflower.cli.privacy import SCHEME_HELP, warn_of_scheme
from coinflower.deploy.terminal import say
from coinflower.protocol.modes import Mode, parse_mode
from coinflower.protocol.notary_key import notary_key
from coinflower.protocol.planning.choices import Choice, weighing
from coinflower.protocol.planning.choices import chosen as chosen_of
from coinflower.protocol.planning.evaluation_price import EvaluationPrice, price_of_evaluations
from coinflower.protocol.planning.planner import (
    Wishes,
    batch_for,
    batches,
    choices,
    with_everybody,
)
from coinflower.protocol.planning.proposal import Proposal, propose
from coinflower.protocol.unit import parse_unit

if TYPE_CHECKING:
    from coinflower.experiments.studies.proxy import Tried

_UNASKED = "accurate"
_ROUND_SECONDS = 5.0


@bundling
def plan(
    *,
    batch: Annotated[
        float | None,
        typer.Option("--batch", help="Mean number of records in a round (default: chosen)."),
    ] = None,
    clients: Annotated[int | None, typer.Option("--clients", help="Number of clients.")] = None,
    d: Annotated[
        int | None, typer.Option("-d", help="Records, or persons, of the largest client.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Privacy loss ε of all rounds.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option("--delta", help="δ, strictly between 0 and 1.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Number of rounds.")] = None,
    hours: Annotated[
        float | None, typer.Option(help="Hours that all rounds may take, instead of --rounds.")
    ] = None,
    round_seconds: Annotated[
        float, typer.Option(help="Seconds that a round takes, for --hours.")
    ] = _ROUND_SECONDS,
    largest_p: Annotated[
        float | None,
        typer.Option("--largest-p", help="Largest participation probability (default: 1)."),
    ] = None,
    bytes_per_round: Annotated[
        float | None, typer.Option(help="Most bytes through the server in a round (default: any).")
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
    proxy: Annotated[
        str | None,
        typer.Option(help="Public data to tune on in the simulator: learning rates, and p."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed the tuning. It protects nothing: its data is public.")
    ] = None,
    learning: LearningOptions,
    row_shape: RowShape = None,
    classes: Annotated[
        int | None, typer.Option(help="Number of classes, or of outputs (default: by the data).")
    ] = None,
    experiment: Annotated[str, typer.Option(help="Name of the experiment.")] = "experiment-1",
    notary: Annotated[
        list[str] | None,
        typer.Option(help="A notary's public key or notary.pub, for mode masked; repeatable."),
    ] = None,
    threshold: Threshold = None,
    colluders: Colluders = None,
    evaluate_every: Annotated[
        int | None,
        typer.Option(help="Also plan evaluations on clients' records, every N rounds."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for settings.toml, policy.toml and plan.json.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Ask for what is not given.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Find p, q, cap and σ for a budget; write terms, a policy and the commands to type."""
    unit = parse_unit(learning.unit)
    given: dict[str, Any] = {
        **{"clients": clients, "d": d, "epsilon": epsilon, "delta": delta},
        "rounds": _affordable(hours, round_seconds) if rounds is None else rounds,
        **{"largest_p": largest_p, "mode": None if mode is None else parse_mode(mode)},
    }
    if interactive:
        given = ask_for_missing(given, unit)
    else:
        _require_all(given)
    data = proxy or data
    public = load_public(data, learning) if proxy is None else load_proxy(proxy, learning.schema)
    subject = subject_of_plan(public, data, learning, classes=classes, row_shape=row_shape)
    chosen = {key: value for key, value in given.items() if value is not None}
    wishes = Wishes(
        **chosen,
        bytes_per_round=bytes_per_round,
        data=data,
        model=subject.fields["model"],
        classes=subject.fields["classes"],
        parameters=subject.parameters,
        all_parameters=subject.all_parameters,
        unit=unit,
        subject=subject.fields,
        schema=learning.schema,
        pretrained=learning.pretrained,
        experiment=experiment,
        notaries=tuple(notary_key(text, Path()) for text in notary or ()),
        threshold=threshold,
        colluders=colluders,
    )
    others = batches(wishes) if batch is None else []
    if batch is None:
        batch = ask_for_batch(wishes, others) if interactive else batch_for(others, _UNASKED)
    kind = wishes.scheme if scheme is None else scheme_class(scheme)
    found = choices(wishes, batch, scheme=kind, caps=None if cap is None else (cap,))
    best = chosen_of(found)
    warn_of_scheme(kind)
    grid: list[Tried] = []
    if public is not None and proxy is not None:
        tried = [best] if best is found[0] else [best, found[0]]
        grid = tune_on(public, wishes, tried, learned=learning.fields(), seed=seed, quiet=as_json)
        best = grid[0].choice
    priced = _evaluation_price(kind, wishes, best, evaluate_every)
    proposal = None
    # Noise that another analysis chose may be too little for what the mode is charged.
    if kind is wishes.scheme and wishes.has_notary:
        rate = grid[0].learning_rate if grid else None
        proposal = propose(wishes, best.split, tuned_rate=rate, evaluation=priced)
        priced = proposal.evaluation
    everybody = with_everybody(wishes, best)
    pays = _secret_coin_pays(kind, wishes, best)
    figures = {
        **_figures(wishes, kind.name, found, best, proposal),
        "with_everybody": None if everybody is None else everybody.figures(),
        "batches": [each.figures() for each in others],
        "proxy": [each.figures() for each in grid],
        "secret_coin_pays": pays,
        "stated_model": learning.fields()["model"],
        "evaluation": None if priced is None else priced.figures(),
    }
    written = _write(wishes, proposal, out, figures)
    if as_json:
        print_json({**figures, "files": written})
        return
    print_choices(wishes, kind.title, batch, found)
    if others:
        print_batches(others)
    if grid:
        print_grid(str(proxy), grid)
    for sentence in _weighed(found, best, everybody):
        say(sentence)
    if pays is False and best.split.p < 1:
        say(why_no_secret(_round_of(best, wishes.d)))
    if priced is not None:
        print_evaluations(priced, best)
    if proposal is not None and (interactive or out is not None):
        print_proposal(proposal, written)


def _affordable(hours: float | None, round_seconds: float) -> int | None:
    """Return how many rounds fit into some hours."""
    if hours is None:
        return None
    validation.require_positive("hours", hours)
    validation.require_positive("round seconds", round_seconds)
    rounds = int(hours * 3600 / round_seconds)
    if rounds < 1:
        raise UserError(
            f"hours = {hours:g} is less than a round of {round_seconds:g} seconds; allow more."
        )
    return rounds


def _round_of(choice: Choice, d: int) -> Round:
    split = choice.split
    return Round(split.p, split.q, d, split.sigma, split.cap)


def _evaluation_price(
    kind: type[Analysis], wishes: Wishes, best: Choice, every: int | None
) -> EvaluationPrice | None:
    if every is None:
        return None
    validation.require_count("evaluate every", every, least=1)
    return price_of_evaluations(
        kind,
        _round_of(best, wishes.d),
        rounds=wishes.rounds,
        every=every,
        epsilon=wishes.epsilon,
        delta=wishes.delta,
    )


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


def _write(
    wishes: Wishes, proposal: Proposal | None, out: Path | None, figures: dict[str, Any]
) -> list[str]:
    if out is None:
        return []
    if not wishes.has_notary:
        raise UserError(
            "--out needs --notary in mode masked, which the terms name; coinflower notary create "
            "makes one."
        )
    if proposal is None:
        raise UserError("--out needs noise by the mode's own scheme; leave out --scheme.")
    return [str(path) for path in proposal.write(out, as_json_text(figures))]


def _figures(
    wishes: Wishes, scheme: str, found: list[Choice], best: Choice, proposal: Proposal | None
) -> dict[str, Any]:
    return {
        **best.figures(),
        **{"delta": wishes.delta, "rounds": wishes.rounds, "scheme": scheme, "d": wishes.d},
        **{"clients": wishes.clients, "largest_p": wishes.largest_p, "mode": str(wishes.mode)},
        "splits": [choice.figures() for choice in found],
        "weighing": weighing(found, best),
        **({} if proposal is None else proposal.figures()),
    }


def _weighed(found: list[Choice], best: Choice, everybody: Choice | None) -> Iterator[str]:
    """Yield what messages cost in noise, and what p = 1 would be worth where it was ruled out."""
    sentence = weighing(found, best)
    if sentence is not None:
        yield sentence
    if everybody is not None and found[0].split.p < 1:
        gain = everybody.signal_to_noise / found[0].signal_to_noise
        if gain > 1:
            yield (
                f"If everybody could take part in every round (p = 1), σ = "
                f"{rounded_up(everybody.split.sigma)} would be enough for this batch: {gain:.3g} "
                f"times less noise over signal, for {everybody.messages:.4g} messages per round."
            )
