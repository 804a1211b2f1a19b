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
from coinflower.learning import Metrics
from coinflower.learning.models.handed import FOLDER
from coinflower.learning.tasks.metrics import is_share, sentence, shown, title_of
from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import CLASSIFICATION, Terms
from coinflower.report.guarantee import Statement
from coinflower.server.checkpoint import write_atomically
from coinflower.server.journal import metrics_of

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
    size: str
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
    loading: Sequence[str] = ()

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


def how_to_load(file: Path) -> list[str]:
    """Return lines of Python that load a run's model; none if there is no model yet."""
    if not file.exists():
        return []
    own = file.parent / FOLDER  # a model that a program handed over is found there
    found = ["import sys", f"sys.path.append({str(own)!r})"] if own.is_dir() else []
    return [
        *found,
        "import torch",
        "from coinflower import load_model",
        f"model = load_model({str(file)!r})",
        "with torch.no_grad():",
        "    answers = model(rows)  # a tensor of records as they were trained on, batch first",
    ]


def describe_terms(terms: Terms) -> list[Statement]:
    """Return the public terms, line by line."""
    lines = [
        ("experiment", terms.experiment),
        ("model", f"{terms.model}, {_outputs(terms)}"),
        *[("task", _task(terms))] * (terms.task != CLASSIFICATION or bool(terms.task_options)),
        ("mode", f"{terms.mode}: {terms.mode.facts.label}; charged as {terms.mode.charged_as}"),
        ("what ε protects", terms.unit.facts.protected),
        ("participation probability p", f"{terms.p:g}"),
        ("sampling rate q", f"{terms.q:g}"),
        ("clip norm C", f"{terms.clip_norm:g}{', automatic' * (terms.clipping == 'automatic')}"),
        *[("cap on a client's whole sum", _capped(terms))] * terms.is_capped,
        ("noise multiplier σ", rounded_up(terms.noise_multiplier, 6)),
        *(_masked(terms) if terms.mode.masks_sums else []),
        ("rounds planned", f"{terms.rounds:,}, {terms.rounds_per_invitation} per invitation"),
        ("hash of the terms", terms.hash),
    ]
    return [Statement(question=question, answer=answer) for question, answer in lines]


def _capped(terms: Terms) -> str:
    return f"{terms.cap:g} clip norms, that is {terms.cap_norm:g}"


def _masked(terms: Terms) -> list[tuple[str, str]]:
    opened = (
        f"of at least {terms.threshold:,} clients, up to {terms.colluders:,} of which may tell "
        f"what they added; the noise of the other {terms.honest_shares:,} is what is charged"
    )
    return [("sums that can be opened", opened), ("notaries", ", ".join(terms.notaries))]


def _outputs(terms: Terms) -> str:
    return f"{terms.classes} {'classes' if terms.task == CLASSIFICATION else 'outputs'}"


def _task(terms: Terms) -> str:
    options = [f"{name} = {value}" for name, value in terms.task_options.items()]
    return ", ".join([terms.task, *options])


def metric_figure(
    measured: Sequence[tuple[float, Metrics]], *, on: str, unit: str = "round"
) -> Figure:
    """Draw the headline over rounds."""
    name = next(iter(measured[-1][1])) if measured else "accuracy"
    found = [(at, metrics.get(name)) for at, metrics in measured]
    points = [(at, value) for at, value in found if value is not None]
    title = f"{capitalised(title_of(name))} over {unit}s"
    last = [f"Last, after {unit} {at:g}: {sentence(metrics)}." for at, metrics in measured[-1:]]
    y = Axis(label=title_of(name))
    if is_share(name):
        y = Axis(label=name, text=_percents, most=1.0)
    svg = line_chart(
        title,
        [Line(name=title_of(name), points=points, dots=True)],
        x=Axis(label=unit, whole=True),
        y=y,
    )
    return Figure(
        name="accuracy" if name == "accuracy" else "metric",
        title=title,
        svg=svg,
        caption=" ".join([f"Measured on {on}.", *last]),
    )


def describe_metrics(metrics: Metrics | None) -> list[Statement]:
    """Return all metrics, line by line."""
    if not metrics:
        return [Statement(question="Measured", answer="not yet")]
    return [
        Statement(question=capitalised(title_of(name)), answer=shown(name, value))
        for name, value in metrics.items()
    ]


def capitalised(text: str) -> str:
    """Return a text as it begins a title."""
    return text[:1].upper() + text[1:]


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


def measured_rounds(rows: Sequence[dict[str, Any]]) -> list[tuple[float, Metrics]]:
    """Return round and metrics wherever they were measured."""
    found = [(float(row["round"]), metrics_of(row)) for row in rows]
    return [(round_, metrics) for round_, metrics in found if metrics]
