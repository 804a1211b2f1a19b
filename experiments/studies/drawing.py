"""Pictures of a study: accuracy over iterations, over ε, over the cap."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.mechanism import Round
from coinflower.accounting.plots import new_axes, save
from coinflower.accounting.rounding import rounded_up
from coinflower.experiments.simulator.request import NO_SCHEME
from coinflower.experiments.studies.studies import Question, Study
from coinflower.experiments.studies.trainings import Outcome

# In the order of drawing: the paper's noise comes last and open, since it may lie upon another.
_LOOKS: dict[str, dict[str, Any]] = {
    NO_SCHEME: {"color": "0.2", "linestyle": "-", "marker": "s"},
    "cs": {"color": "C2", "linestyle": "--", "marker": "v"},
    "certified": {"color": "C0", "linestyle": "-", "linewidth": 2.2, "marker": "o"},
    "wcs": {"color": "C4", "linestyle": "-", "marker": "^"},
    "ols": {"color": "C5", "linestyle": "-", "marker": "D"},
    "paper": {"color": "C1", "linestyle": ":", "marker": "s", "markerfacecolor": "none"},
}
_SIZES = {"paper": 9}
_MARKERS = "os^Dv"
_FEW_DECADES = 1e3
_ACCURACY = "test accuracy"


def draw(study: Study, outcomes: list[Outcome], out: Path) -> dict[str, str]:
    """Draw a study as PNG and SVG into ``out``; returns the caption of each picture."""
    if study.question is Question.CAP:
        return {"over-cap": _draw_over_cap(study, outcomes, out)}
    seeds, truth = _seeds(study, outcomes), _truth(study, outcomes)
    what = "at the paper's (0.015, 1e-6) for each iteration"
    _draw_over(
        outcomes,
        out / "over-epsilon",
        f"ε spent, certified, δ = {study.delta:g}",
        lambda outcome, at: spent(outcome, at, study.delta),
        scale="log",
    )
    _draw_over(outcomes, out / "over-iterations", "iteration", lambda _outcome, at: at)
    return {
        "over-epsilon": f"The same trainings over the ε that each has really spent, {what}; "
        f"further left is better ({seeds}). {truth}",
        "over-iterations": f"Accuracy {what}, σ chosen by each analysis ({seeds}). {truth}",
    }


def _seeds(study: Study, outcomes: list[Outcome]) -> str:
    """Say what lies behind a point, and how far it was tuned."""
    text = f"mean of {study.seeds} seeds, bars and bands one standard deviation"
    edges = sum(each.edge != "" for each in outcomes)
    if edges:
        text += f"; {edges} of {len(outcomes)} learning rates at the edge of those tried"
    return text


def spent(outcome: Outcome, iteration: int, delta: float) -> float | None:
    """Return the certified ε that a trusted server's training has cost by an iteration."""
    if outcome.sigma == 0:
        return None
    terms = Certified(Round(outcome.p, outcome.q, outcome.d, outcome.sigma, outcome.case.cap))
    return epsilon_after([(terms, iteration)], delta)


def _truth(study: Study, outcomes: list[Outcome]) -> str:
    """Say what the schemes that are no upper bound really cost."""
    told = [
        f"`{each.case.scheme}`{_for(each)} really costs ε = {rounded_up(each.epsilon, 3)}"
        for each in outcomes
        if each.epsilon is not None and not each.case.holds
    ]
    if not told:
        return ""
    return (
        f"σ of {'; '.join(told)} (certified, δ = {study.delta:g}, {study.iterations} iterations)."
    )


def _for(outcome: Outcome) -> str:
    return "" if outcome.case.epsilon is None else f" for ε = {outcome.case.epsilon:g}"


def _draw_over(
    outcomes: list[Outcome],
    path: Path,
    x_label: str,
    place: Callable[[Outcome, int], float | None],
    *,
    scale: str = "linear",
) -> None:
    figure, axes = new_axes("", x_label, _ACCURACY)
    axes.set_xscale(scale)
    order = list(_LOOKS)
    for outcome in sorted(outcomes, key=lambda each: order.index(each.case.scheme)):
        points = [(place(outcome, at), values) for at, values in outcome.curve.items()]
        there = [(x, values) for x, values in points if x is not None]
        if not there:
            continue
        x = [each for each, _ in there]
        mean = [statistics.fmean(values) for _, values in there]
        spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in there]
        look = _LOOKS[outcome.case.scheme]
        size = _SIZES.get(outcome.case.scheme, 5)
        axes.plot(x, mean, label=outcome.case.title, markersize=size, **look)
        low = [m - s for m, s in zip(mean, spread, strict=True)]
        high = [m + s for m, s in zip(mean, spread, strict=True)]
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    _finish(figure, axes, path)


def _draw_over_cap(study: Study, outcomes: list[Outcome], out: Path) -> str:
    figure, axes = new_axes("", "cap on a client's sum, in clip norms", _ACCURACY)
    places = {cap: index for index, cap in enumerate(sorted(study.caps))}
    budgets = list(dict.fromkeys(each.case.epsilon for each in outcomes))
    for index, epsilon in enumerate(budgets):
        group = [
            each
            for each in outcomes
            if (each.case.scheme, each.case.epsilon) == ("certified", epsilon)
        ]
        name = "the paper's (ε, δ) in each iteration" if epsilon is None else f"ε = {epsilon:g}"
        _draw_group(
            axes,
            group,
            lambda each: places[each.case.cap],
            marker=_MARKERS[index % len(_MARKERS)],
            color=f"C{index}",
            label=name,
        )
    (theirs,) = (each for each in outcomes if each.case.scheme == "paper")
    axes.axhline(
        theirs.mean, color=f"C{len(budgets) - 1}", linestyle=":", label="the paper's σ, no cap"
    )
    axes.set_xticks(list(places.values()))
    axes.set_xticklabels(["none" if math.isinf(cap) else f"{cap:g}" for cap in places])
    _finish(figure, axes, out / "over-cap")
    return (
        f"Accuracy after {study.iterations} iterations over the cap, with the noise that the "
        f"certified bound asks for under it ({_seeds(study, outcomes)}). "
        f"{_truth(study, outcomes)}"
    )


def _draw_group(
    axes: Any, group: list[Outcome], place: Callable[[Outcome], float | None], **look: Any
) -> None:
    axes.errorbar(
        [place(each) for each in group],
        [each.mean for each in group],
        yerr=[each.spread for each in group],
        capsize=3,
        **look,
    )


def _finish(figure: Any, axes: Any, path: Path, ticks: Iterable[float] = ()) -> None:
    """Write a picture, its legend below; a logarithmic axis is marked at ticks if any are given."""
    axes.set_ylim(0, 1)
    if axes.get_xscale() == "log":
        mark_plainly(axes, sorted(set(ticks)))
    columns = 2 if len(axes.get_legend_handles_labels()[0]) <= 4 else 3
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=columns)
    save(figure, path.with_suffix(".png"), path.with_suffix(".svg"))


def mark_plainly(axes: Any, ticks: list[float]) -> None:
    """Write plain numbers, few enough not to touch, at a logarithmic axis."""
    from matplotlib import ticker

    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high < _FEW_DECADES * low else (1.0,)
    axes.xaxis.set_major_locator(
        ticker.FixedLocator(ticks) if ticks else ticker.LogLocator(subs=subs)
    )
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
