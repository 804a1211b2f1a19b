"""The report of a run: one HTML file that needs nothing else and sends nothing anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from coinflower.accounting.charts import Axis, Line, Point, binned, line_chart
from coinflower.accounting.ledger.prices import Prices
from coinflower.accounting.ledger.statement import Statement as LedgerStatement
from coinflower.accounting.ledger.statement import Statements
from coinflower.accounting.rounding import rounded_up
from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import Terms
from coinflower.report.guarantee import Statement
from coinflower.server.checkpoint import write_atomically

REPORT = "report.html"
INSECURE = "INSECURE: coins, samples and noise were seeded, so this run protects nothing."
NO_PRIVACY = "NO PRIVACY: this run protects nothing and charged nothing."
_SEEDED = Statement(
    question="Does it hold",
    answer="no: something was seeded; what follows would hold for the same run with secure coins",
)
_NO_PROMISE = [
    Statement(question="Who is protected", answer=f"nobody: mode {Mode.NONE} adds no noise"),
    Statement(
        question="What follows",
        answer="the model may contain any of the data; treat it like the data",
    ),
]

# A composition takes about a twentieth of a second; this many make a smooth curve.
_POINTS_A_CURVE = 10


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart with its words; ``name`` is its anchor on the page."""

    name: str
    title: str
    svg: Markup
    caption: str


@dataclass(frozen=True, kw_only=True)
class ClientLine:
    """What a client spent of its budget; figures as they are written."""

    name: str
    records: str
    epsilon: str
    budget: str
    share: float
    charged: int
    took_part: int


@dataclass(frozen=True, kw_only=True)
class Report:
    """All that the page shows; without promises the run had no privacy."""

    title: str
    subtitle: str
    insecure: bool
    summary: Sequence[Statement]
    promises: Sequence[Statement]
    caveats: Sequence[str]
    figures: Sequence[Figure]
    terms: Sequence[Statement]
    clients: Sequence[ClientLine] = ()

    @property
    def stamps(self) -> list[str]:
        """What must stand above everything else."""
        return [INSECURE] * self.insecure + [NO_PRIVACY] * (not self.promises)

    @property
    def guarantee(self) -> list[Statement]:
        """What is promised, and whether it holds."""
        return [_SEEDED] * self.insecure + [*self.promises] if self.promises else _NO_PROMISE

    @property
    def version(self) -> str:
        """Version of the program."""
        return version("coinflower")

    @property
    def written(self) -> str:
        """When the page was written."""
        return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def write_report(report: Report, folder: Path) -> Path:
    """Write the page into a folder and return where it is."""
    environment = Environment(
        loader=PackageLoader("coinflower.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(REPORT).render(report=report)
    path = folder / REPORT
    write_atomically(path, page.encode())
    return path


def largest_epsilon(epsilon: float, delta: float) -> list[Statement]:
    """Return the figure that everybody looks for."""
    return [
        Statement(question="Largest ε of a client", answer=f"≤ {rounded_up(epsilon)}"),
        Statement(question="at δ", answer=f"{delta:g}"),
    ]


def percent(share: float | None) -> str:
    """Return an accuracy as people read it."""
    return "not measured" if share is None else f"{share:.1%}"


def describe_terms(terms: Terms) -> list[Statement]:
    """Return the public terms, line by line."""
    lines = [
        ("experiment", terms.experiment),
        ("model", f"{terms.model}, {terms.classes} classes"),
        ("mode", f"{terms.mode}: {terms.mode.facts.label}; charged as {terms.mode.charged_as}"),
        ("participation probability p", f"{terms.p:g}"),
        ("sampling rate q", f"{terms.q:g}"),
        ("clip norm C", f"{terms.clip_norm:g}"),
        *[("cap on a client's whole sum", _capped(terms))] * terms.is_capped,
        ("noise multiplier σ", rounded_up(terms.noise_multiplier, 6)),
        ("rounds planned", f"{terms.rounds:,}, {terms.rounds_per_invitation} per invitation"),
        ("hash of the terms", terms.hash),
    ]
    return [Statement(question=question, answer=answer) for question, answer in lines]


def _capped(terms: Terms) -> str:
    return f"{terms.cap:g} clip norms, that is {terms.cap_norm:g}"


def accuracy_figure(measured: Sequence[Point], *, on: str, unit: str = "round") -> Figure:
    """Draw test accuracy over rounds."""
    line = Line(name="accuracy", points=measured, dots=True)
    title = f"Accuracy over {unit}s"
    last = f"Last: {measured[-1][1]:.2%} after {unit} {measured[-1][0]:g}." if measured else ""
    svg = line_chart(
        title,
        [line],
        x=Axis(label=unit, whole=True),
        y=Axis(label="accuracy", text=_percents, most=1.0),
    )
    return Figure(
        name="accuracy", title=title, svg=svg, caption=f"Measured on {on}. {last}".strip()
    )


def _percents(share: float) -> str:
    text = f"{100 * share:.2f}".rstrip("0").rstrip(".")
    return f"{text} %"


def count_figure(
    name: str, title: str, label: str, counts: Sequence[Point], *, caption: str, unit: str = "round"
) -> Figure:
    """Draw a count over rounds: means with a band from least to largest where there are many."""
    means, band, size = binned(counts)
    line = Line(name=label, points=means, kind="second", dots=size == 1)
    mean = sum(value for _, value in counts) / len(counts) if counts else 0.0
    told = f"Mean {mean:.1f}. {caption}"
    if band is not None:
        told += f" The line is the mean of {size} {unit}s, the band their least and largest."
    svg = line_chart(
        title,
        [line],
        x=Axis(label=unit, whole=True),
        y=Axis(label=label),
        bands=[band] if band else [],
    )
    return Figure(name=name, title=title, svg=svg, caption=told)


def took_part_caption(p: float) -> str:
    """Say which clients take part."""
    return "Clients whose coin said yes." if p < 1 else "Every client that was there: p = 1."


def epsilon_points(
    stated: LedgerStatement, rounds: Sequence[int], experiments: Sequence[str]
) -> list[Point]:
    """Return ε over the rounds that a client was charged for.

    Args:
        stated: What all of them add up to.
        rounds: Their numbers, in the order of the charges.
        experiments: The experiment of each.

    Returns:
        Pairs of round and ε, first and last charge included, evenly spaced between.
    """
    points = Statements(Prices()).curve(stated, experiments, most_points=_POINTS_A_CURVE)
    return [
        (float(rounds[point.rounds - 1]) if point.rounds else 0.0, point.epsilon)
        for point in points
    ]


def measured_points(rows: Sequence[dict[str, Any]]) -> list[Point]:
    """Return round and accuracy wherever it was measured."""
    return [(float(row["round"]), row["accuracy"]) for row in rows if row["accuracy"] is not None]
