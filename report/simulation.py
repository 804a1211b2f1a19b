"""What the report says of a simulation: many clients in one process, no ledgers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from coinflower.accounting.analyses.baselines import CentralShuffling
from coinflower.accounting.analyses.names import scheme_class
from coinflower.accounting.charts import Axis, Line, line_chart
from coinflower.accounting.ledger.entries import Tally
from coinflower.accounting.ledger.prices import Prices
from coinflower.accounting.ledger.statement import Statements
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_up
from coinflower.experiments.simulator.simulation import Curve, read_state
from coinflower.protocol.modes import Mode
from coinflower.protocol.unit import Unit
from coinflower.report.guarantee import Statement, statements
from coinflower.report.page import (
    Figure,
    Report,
    count_figure,
    describe_metrics,
    epsilon_points,
    largest_epsilon,
    metric_figure,
    took_part_caption,
    write_report,
)
from coinflower.report.run import caveats

SIMULATED = Statement(
    question="What was run",
    answer="a simulation in one process: it shows what a federation of this kind would promise, "
    "and guards nobody's data itself",
)


def report_simulation(folder: Path, results: dict[str, Any]) -> Path:
    """Write the report of a simulation whose state lies in a folder and return where it is."""
    curve = read_state(folder).curve
    private = results["epsilon"] is not None
    summary = [
        *describe_metrics(results["metrics"]),
        Statement(question="Iterations", answer=f"{results['iterations']:,}"),
        Statement(question="Clients", answer=f"{results['clients']:,}"),
    ]
    figures = _counts(curve, results)
    promises: list[Statement] = []
    if private:
        summary += largest_epsilon(results["epsilon"], results["delta"])
        figures.append(_epsilon_figure(results))
        promises = [SIMULATED, *_guarantee(results)]
    mode = Mode.NONE if not private or _is_central(results) else Mode(results["noise"])
    report = Report(
        title=f"Report of simulation {results['scenario']}",
        subtitle=f"{results['clients']:,} clients in one process",
        insecure=bool(results["insecure"]),
        summary=summary,
        promises=promises,
        caveats=caveats(mode, Unit(results["unit"])),
        figures=figures,
        terms=_terms(results),
    )
    return write_report(report, folder)


def _is_central(results: dict[str, Any]) -> bool:
    return bool(results["analysis"] == CentralShuffling.name)


def _round(results: dict[str, Any]) -> Round:
    cap = results["cap"] or math.inf
    return Round(results["p"], results["q"], results["d"], results["sigma"], cap)


def _guarantee(results: dict[str, Any]) -> list[Statement]:
    cost = scheme_class(results["analysis"])(_round(results))
    if _is_central(results):
        return [
            Statement(
                question="Against whom",
                answer="everybody but the one place that holds all data: an ideal to compare "
                "with, not a federation",
            ),
            Statement(
                question="At what ε and δ",
                answer=f"ε ≤ {rounded_up(results['epsilon'])} at δ = {results['delta']:g}",
            ),
            Statement(question="By which analysis", answer=f"{cost.title} (scheme {cost.name})"),
        ]
    return statements(
        Mode(results["noise"]),
        Unit(results["unit"]),
        cost,
        results["iterations"],
        results["epsilon"],
        results["delta"],
    )


def _counts(curve: Curve, results: dict[str, Any]) -> list[Figure]:
    took_part = [(float(at), float(count)) for at, (count, _) in enumerate(curve.draws, start=1)]
    drawn = [(float(at), float(count)) for at, (_, count) in enumerate(curve.draws, start=1)]
    measured = [(float(at), metrics) for at, metrics in sorted(curve.measured.items())]
    return [
        metric_figure(measured, on=f"the test part of {results['data']}", unit="iteration"),
        count_figure(
            "participants",
            "Clients that took part, per iteration",
            "clients",
            took_part,
            caption=took_part_caption(results["p"]),
            unit="iteration",
        ),
        count_figure(
            "batch",
            "Batch size, per iteration",
            f"{results['unit']}s",
            drawn,
            caption="As drawn; only a simulation knows.",
            unit="iteration",
        ),
    ]


def _epsilon_figure(results: dict[str, Any]) -> Figure:
    played, name = results["iterations"], results["scenario"]
    tally = Tally(
        experiment=name,
        terms=scheme_class(results["analysis"])(_round(results)),
        reserved_rounds=played,
        charged=played,
        took_part=0,
        secure=not results["insecure"],
    )
    stated = Statements(Prices()).statement([tally], results["delta"])
    points = epsilon_points(stated, range(1, played + 1), [name] * played)
    title = "ε of the largest client over iterations"
    svg = line_chart(
        title,
        [Line(name="ε", points=points, dots=True)],
        x=Axis(label="iteration", whole=True),
        y=Axis(label="ε", text=rounded_up),
    )
    return Figure(
        name="epsilon",
        title=title,
        svg=svg,
        caption=f"At δ = {results['delta']:g}, for a client with {results['d']:,} "
        f"{results['unit']}s that is there in every iteration; no client loses more.",
    )


def _shares(results: dict[str, Any]) -> list[tuple[str, str]]:
    if "threshold" not in results:
        return []
    told = f"{results['threshold']:,} clients at least, {results['colluders']:,} of them colluding"
    return [("an opened sum has", told)]


def _clip_norms(results: dict[str, Any]) -> str:
    return f"{results['cap']:g} clip norms"


def _terms(results: dict[str, Any]) -> list[Statement]:
    sizes = f"{results['smallest_d']:,} to {results['d']:,}"
    if results["smallest_d"] == results["d"]:
        sizes = f"{results['d']:,}"
    lines = [
        ("data", results["data"]),
        ("clients", f"{results['clients']:,} with {sizes} {results['unit']}s each"),
        ("what ε protects", Unit(results["unit"]).facts.protected),
        ("who adds noise", results["noise"]),
        *_shares(results),
        ("participation probability p", f"{results['p']:.4g}"),
        ("sampling rate q", f"{results['q']:.4g}"),
        *([] if results["cap"] is None else [("cap on a client's sum", _clip_norms(results))]),
        ("noise multiplier σ", f"{rounded_up(results['sigma'], 6)}, chosen by {results['scheme']}"),
        ("learning rate", f"{results['learning_rate']:g}"),
        ("mean batch", f"{results['mean_batch']:.4g}"),
    ]
    return [Statement(question=question, answer=answer) for question, answer in lines]
