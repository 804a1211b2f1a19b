"""The paper's figures and its table of noise levels, redrawn with what really holds beside them.

Sections 5.2 to 5.5 of "Privacy Amplification via Random Participation in Federated Learning".
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from accounting.calibration import least_sigma
from accounting.realised import realised_delta, realised_epsilon
from accounting.schemes import (
    SCHEMES,
    AsPlotted,
    CentralShuffling,
    Certified,
    OnlyLocalSampling,
    Scheme,
    WeakClientSampling,
)
from experiments.check_ins import check_in_curve
from experiments.curves import new_axes, save

Series = list[tuple[float, float]]

_WHY = (
    "The paper's curves lie below ours because its proof shifts the sampled sum away before "
    "averaging over it, so they are not an upper bound; the truth lies between realised and "
    "certified."
)
SCENARIOS = {
    "many-small": {"p": 0.001, "q": 0.1, "d": 30},
    "few-large": {"p": 0.1, "q": 0.001, "d": 1000},
}
_BASELINES: tuple[type[Scheme], ...] = (OnlyLocalSampling, WeakClientSampling, CentralShuffling)
_COMPARED: tuple[type[Scheme], ...] = (Certified, AsPlotted)
# What the paper prints (section 6), for the scenarios' (ε, δ) = (0.015, 1e-6).
_PRINTED_SIGMAS = {
    "many-small": {"paper": 1.065, "wcs": 7.65, "ols": 22.4},
    "few-large": {"paper": 0.646, "wcs": 0.873, "ols": 1.103},
}


@dataclass(kw_only=True)
class Figure:
    """One figure: its curves, the paper's points on it, and a caption."""

    name: str
    title: str
    x_label: str
    y_label: str
    caption: str
    log_x: bool = False
    log_y: bool = True
    curves: dict[str, Series] = field(default_factory=dict)
    points: dict[str, Series] = field(default_factory=dict)


def load_points(path: Path | None) -> dict[str, Any]:
    """Return the paper's own points, from ``path`` or from the copy that we carry."""
    source = path if path is not None else resources.files("experiments") / "paper_points.json"
    try:
        points: dict[str, Any] = json.loads(source.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{source} is not JSON: {error}.") from None
    missing = {"fig:eps_vs_sigma", "fig:delta_vs_sigma", "fig:p_q_trade_off"} - points.keys()
    if missing:
        raise ValueError(f"{source} lacks the figures {', '.join(sorted(missing))}.")
    return points


def _terms(kind: type[Scheme], p: float, q: float, d: int, sigma: float) -> Scheme:
    return kind(p=p, q=q, d=d, noise_multiplier=sigma)


def _positive(series: Series) -> Series:
    """Return the points a logarithmic axis can show."""
    return [(x, y) for x, y in series if y > 1e-15]


def epsilon_delta(_: dict[str, Any]) -> Figure:
    """Return δ over ε at p = q = 0.1, σ = 1."""
    figure = Figure(
        name="eps_vs_delta",
        title="δ over ε, one round, p = q = 0.1, σ = 1",
        x_label="ε",
        y_label="δ",
        caption=f"The paper's source carries no points for this figure. {_WHY}",
    )
    span = np.linspace(0, 2.5, 60)
    for kind in _BASELINES:
        values = _terms(kind, 0.1, 0.1, 0, 1.0).delta(span)
        figure.curves[kind.name] = _positive(list(zip(span.tolist(), values.tolist(), strict=True)))
    for d in (1, 10, 30, 100):
        for kind in _COMPARED:
            values = _terms(kind, 0.1, 0.1, d, 1.0).delta(span)
            series = list(zip(span.tolist(), values.tolist(), strict=True))
            figure.curves[f"{kind.name} d={d}"] = _positive(series)
        certified = _terms(Certified, 0.1, 0.1, d, 1.0)
        figure.curves[f"realised d={d}"] = _positive(
            [(e, realised_delta(certified, e)[0]) for e in span[::6].tolist()]
        )
    return figure


def epsilon_sigma(paper: dict[str, Any]) -> Figure:
    """Return ε over σ at p = q = 0.1, δ = 1e-6."""
    source = paper["fig:eps_vs_sigma"]
    delta = source["delta"]
    figure = Figure(
        name="eps_vs_sigma",
        title=f"ε over σ, one round, p = q = 0.1, δ = {delta:g}",
        x_label="σ",
        y_label="ε",
        log_x=True,
        caption=(
            f"The paper does not state δ; its baselines satisfy {delta:g}. Its points from σ = 6.7 "
            f"on bend down because its search for the crossing ends at z = 20. {_WHY}"
        ),
        points={name: [tuple(point) for point in s] for name, s in source["curves"].items()},
    )
    sigmas = np.geomspace(1.0, 11.3, 25).tolist()
    for kind in _BASELINES:
        figure.curves[kind.name] = _positive(
            [(s, _terms(kind, 0.1, 0.1, 0, s).epsilon(delta)) for s in sigmas]
        )
    for d in (1, 10, 30, 100):
        for kind in _COMPARED:
            figure.curves[f"{kind.name} d={d}"] = _positive(
                [(s, _terms(kind, 0.1, 0.1, d, s).epsilon(delta)) for s in sigmas]
            )
        figure.curves[f"realised d={d}"] = _positive(
            [(s, _realised_epsilon(0.1, 0.1, d, s, delta)) for s in sigmas[::6]]
        )
    return figure


def _realised_epsilon(p: float, q: float, d: int, sigma: float, delta: float) -> float:
    certified = _terms(Certified, p, q, d, sigma)
    return realised_epsilon(certified, delta, start=certified.epsilon(delta))[0]


def delta_sigma(paper: dict[str, Any]) -> Figure:
    """Return δ over σ at p = q = 0.1, ε = 1."""
    source = paper["fig:delta_vs_sigma"]
    epsilon = source["epsilon"]
    figure = Figure(
        name="delta_vs_sigma",
        title=f"δ over σ, one round, p = q = 0.1, ε = {epsilon:g}",
        x_label="σ",
        y_label="δ",
        caption=(
            f"The paper does not state ε; its baselines satisfy {epsilon:g}. Its d = 1 curve turns "
            "negative from cancellation (such points are left out) and its d = 100 points from "
            f"σ = 2 on are the WCS value. {_WHY}"
        ),
        points={name: _positive([tuple(pt) for pt in s]) for name, s in source["curves"].items()},
    )
    sigmas = np.linspace(0.5, 2.8, 47).tolist()
    for kind in _BASELINES:
        figure.curves[kind.name] = _positive(
            [(s, _terms(kind, 0.1, 0.1, 0, s).delta(epsilon)) for s in sigmas]
        )
    for d in (1, 10, 30, 100):
        for kind in _COMPARED:
            figure.curves[f"{kind.name} d={d}"] = _positive(
                [(s, _terms(kind, 0.1, 0.1, d, s).delta(epsilon)) for s in sigmas]
            )
        figure.curves[f"realised d={d}"] = _positive(
            [
                (s, realised_delta(_terms(Certified, 0.1, 0.1, d, s), epsilon)[0])
                for s in sigmas[::5]
            ]
        )
    return figure


def check_ins(_: dict[str, Any]) -> Figure:
    """Return the comparison with random check-ins at p = q = 0.1, σ = 3."""
    figure = Figure(
        name="comparison_with_literature",
        title="Random participation and random check-ins, p = q = 0.1, σ = 3",
        x_label="ε",
        y_label="δ",
        caption=(
            "Random check-ins (Balle et al. 2020, Theorem 3.2) evaluated by us for one slot and "
            "the subsampled Gaussian as local randomiser; the paper's source carries neither its "
            "points nor its settings here, so the check-in curve need not be the paper's."
        ),
    )
    span = np.linspace(0, 1.0, 60)
    for kind in _BASELINES:
        values = _terms(kind, 0.1, 0.1, 0, 3.0).delta(span)
        figure.curves[kind.name] = _positive(list(zip(span.tolist(), values.tolist(), strict=True)))
    for d in (10, 100):
        for kind in _COMPARED:
            values = _terms(kind, 0.1, 0.1, d, 3.0).delta(span)
            series = list(zip(span.tolist(), values.tolist(), strict=True))
            figure.curves[f"{kind.name} d={d}"] = _positive(series)
    prior = check_in_curve(p=0.1, q=0.1, noise_multiplier=3.0)
    figure.curves["random check-ins"] = [(x, y) for x, y in prior if x <= 3]
    return figure


def p_q_trade_off(paper: dict[str, Any]) -> Figure:
    """Return ε over q at fixed p·q."""
    source = paper["fig:p_q_trade_off"]
    rate, delta, sigma = source["pq"], source["delta"], source["sigma"]
    figure = Figure(
        name="p_q_trade_off",
        title=f"ε over q at p·q = {rate:g}, σ = {sigma:g}, δ = {delta:g}",
        x_label="q",
        y_label="ε",
        log_x=True,
        caption=f"At q = 1 every curve of the paper is WCS. {_WHY}",
        points={name: [tuple(point) for point in s] for name, s in source["curves"].items()},
    )
    rates = np.geomspace(rate, 1, 25).tolist()
    for kind in _BASELINES[:2]:
        figure.curves[kind.name] = [
            (q, _terms(kind, rate / q, q, 0, sigma).epsilon(delta)) for q in rates
        ]
    for d in (2, 30, 1000):
        for kind in _COMPARED:
            figure.curves[f"{kind.name} d={d}"] = [
                (q, _terms(kind, rate / q, q, d, sigma).epsilon(delta)) for q in rates
            ]
        figure.curves[f"realised d={d}"] = [
            (q, _realised_epsilon(rate / q, q, d, sigma, delta)) for q in rates[::6]
        ]
    return figure


def sigma_table() -> list[dict[str, object]]:
    """Return the noise that each analysis asks for in both scenarios at (0.015, 1e-6)."""
    rows: list[dict[str, object]] = []
    for scenario, setting in SCENARIOS.items():
        p, q, d = setting["p"], setting["q"], int(setting["d"])
        sigmas = {
            name: least_sigma(kind, p=p, q=q, d=d, epsilon=0.015, delta=1e-6, rounds=1)
            for name, kind in SCHEMES.items()
        }
        sigmas["realised"] = _realised_sigma(p, q, d, 0.015, 1e-6, below=sigmas["certified"])
        rows.extend(
            {
                "scenario": scenario,
                "scheme": name,
                "sigma": sigma,
                "sigma_in_paper": _PRINTED_SIGMAS[scenario].get(name),
                "upper_bound": name in SCHEMES and SCHEMES[name].is_upper_bound,
            }
            for name, sigma in sigmas.items()
        )
    return rows


def _realised_sigma(
    p: float, q: float, d: int, epsilon: float, delta: float, *, below: float
) -> float:
    """Return noise at which a concrete data set still reaches (ε, δ), to a thousandth."""
    low, high = below / 4, below
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        reached = realised_delta(_terms(Certified, p, q, d, middle), epsilon)[0]
        low, high = (middle, high) if reached >= delta else (low, middle)
    return low


FIGURES: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "eps_vs_delta": epsilon_delta,
    "eps_vs_sigma": epsilon_sigma,
    "delta_vs_sigma": delta_sigma,
    "comparison_with_literature": check_ins,
    "p_q_trade_off": p_q_trade_off,
}


def draw_all(out: Path, points: Path | None) -> Iterator[str]:
    """Draw everything into ``out``, yielding the name of each figure once it is there."""
    paper = load_points(points)
    out.mkdir(parents=True, exist_ok=True)
    captions = []
    for name, make in FIGURES.items():
        figure = make(paper)
        _draw(figure, out)
        _write_series(figure, out / f"{name}.csv")
        captions.append(f"## {figure.title}\n\n![{name}]({name}.png)\n\n{figure.caption}\n")
        yield name
    rows = sigma_table()
    caption = _draw_sigmas(rows, out)
    captions.append(
        f"## Noise for (0.015, 1e-6) in one round\n\n![σ](sigma_table.png)\n\n{caption}\n"
    )
    with (out / "sigma_table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (out / "README.md").write_text("# The paper's figures\n\n" + "\n".join(captions))
    yield "sigma_table"


def _write_series(figure: Figure, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["curve", "source", figure.x_label, figure.y_label])
        for source, group in (("computed", figure.curves), ("paper's figure", figure.points)):
            for name, series in group.items():
                writer.writerows([name, source, x, y] for x, y in series)


def _style(curve: str) -> dict[str, object]:
    """Return line style and legend text; what is no upper bound says so."""
    base = curve.split(" ", maxsplit=1)[0]
    if base == "realised":
        return {"linestyle": "--", "linewidth": 1, "label": f"{curve} (lower bound)"}
    if base == AsPlotted.name:
        return {"linestyle": ":", "linewidth": 1.2, "label": f"{curve} (not an upper bound)"}
    if base == Certified.name:
        return {"linestyle": "-", "linewidth": 2, "label": curve}
    dashes = {"ols": "-", "wcs": (0, (6, 2)), "cs": (0, (1, 1))}
    if base in dashes:
        return {"linestyle": dashes[base], "linewidth": 1.3, "color": "0.35", "label": curve}
    return {"linestyle": "-.", "linewidth": 1.5, "label": curve}


def _draw(figure: Figure, out: Path) -> None:
    picture, axes = new_axes(figure.title, figure.x_label, figure.y_label, height=6.0)
    colours: dict[str, str] = {}
    markers = iter("osD^vPX*")
    for name, series in figure.curves.items():
        style = _style(name)
        size = name.rsplit("d=", maxsplit=1)[-1] if "d=" in name else name
        if "color" not in style:
            style["color"] = colours.setdefault(size, f"C{len(colours)}")
        axes.plot(*zip(*series, strict=True), **style)
    for name, series in figure.points.items():
        if series:
            note = "" if name in ("OLS", "WCS") else ", not an upper bound"
            colour = colours.get(name.removeprefix("d="), "0.4")
            axes.plot(
                *zip(*series, strict=True),
                linestyle="none",
                marker=next(markers),
                markersize=4,
                color=colour,
                label=f"paper's points, {name}{note}",
            )
    axes.set_xscale("log" if figure.log_x else "linear")
    axes.set_yscale("log" if figure.log_y else "linear")
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.01, 0.5))
    picture.text(0.02, -0.06, figure.caption, fontsize=7, wrap=True)
    save(picture, out / f"{figure.name}.png", out / f"{figure.name}.svg")


def _draw_sigmas(rows: list[dict[str, Any]], out: Path) -> str:
    caption = (
        "Each analysis' noise for the same claim; orange bars are not an upper bound, so their "
        "noise is too small for the claim (the search for the least noise ends at 0.01). "
        "The paper rounds its figures."
    )
    picture, axes = new_axes("σ for (ε, δ) = (0.015, 1e-6), one round", "σ", "", height=5.5)
    labels = [f"{row['scenario']}: {row['scheme']}" for row in rows]
    for holds, colour, text in ((True, "C0", "computed"), (False, "C1", "not an upper bound")):
        shown = [(label, row["sigma"]) for label, row in zip(labels, rows, strict=True)]
        shown = [bar for bar, row in zip(shown, rows, strict=True) if row["upper_bound"] == holds]
        axes.barh(*zip(*shown, strict=True), color=colour, label=text)
    printed = [(label, row["sigma_in_paper"]) for label, row in zip(labels, rows, strict=True)]
    marks = [(value, label) for label, value in printed if value is not None]
    axes.plot(*zip(*marks, strict=True), "kD", linestyle="none", label="printed in the paper")
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.legend(fontsize=8)
    picture.text(0.02, -0.02, caption, fontsize=7, wrap=True)
    save(picture, out / "sigma_table.png", out / "sigma_table.svg")
    return caption
