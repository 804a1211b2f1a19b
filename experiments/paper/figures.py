"""What the paper's figures and its table of noise levels show, and what really holds.

Sections 5.2 to 5.5 of "Privacy Amplification via Random Participation in Federated Learning".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.baselines import (
    CentralShuffling,
    OnlyLocalSampling,
    WeakClientSampling,
)
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.names import SCHEMES
from coinflower.accounting.analyses.paper import AsPlotted
from coinflower.accounting.analyses.realised import realised_delta, realised_epsilon
from coinflower.accounting.composition.calibration import least_sigma
from coinflower.accounting.composition.tightness import realised_sigma_after
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Round
from coinflower.experiments.paper.check_ins import check_in_curve

Series = list[tuple[float, float]]

_WHY = (
    "The paper's curves lie below ours because their formula shifts the sampled sum away before "
    "averaging over it, so they are not an upper bound; the truth lies between realised and "
    "certified."
)
SCENARIOS = {
    "many-small": {"p": 0.001, "q": 0.1, "d": 30},
    "few-large": {"p": 0.1, "q": 0.001, "d": 1000},
}
_NEEDED_POINTS = {
    "fig:eps_vs_sigma": ("delta", "curves"),
    "fig:delta_vs_sigma": ("epsilon", "curves"),
    "fig:p_q_trade_off": ("pq", "sigma", "delta", "curves"),
}
_BASELINES: tuple[type[Analysis], ...] = (OnlyLocalSampling, WeakClientSampling, CentralShuffling)
_COMPARED: tuple[type[Analysis], ...] = (Certified, AsPlotted)
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
    curves: dict[str, Series] = field(default_factory=dict)
    points: dict[str, Series] = field(default_factory=dict)


def load_points(path: Path | None) -> dict[str, Any]:
    """Return the paper's own points, from ``path`` or from the copy that we carry."""
    source = path if path is not None else resources.files(__package__) / "paper_points.json"
    try:
        points: dict[str, Any] = json.loads(source.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{source} is not JSON: {error}.") from None
    for figure, needed in _NEEDED_POINTS.items():
        part = points.get(figure) if isinstance(points, dict) else None
        if not isinstance(part, dict) or not part.keys() >= set(needed):
            raise UserError(f"{source} lacks the figure {figure} with {', '.join(needed)}.")
    return points


def _positive(series: Series) -> Series:
    """Return the points a logarithmic axis can show."""
    return [(x, y) for x, y in series if y > 1e-15]


def _draw(
    figure: Figure,
    places: Sequence[float],
    sizes: Sequence[int],
    value: Callable[[type[Analysis], int, float], float],
    realised: Callable[[int, float], float],
    *,
    baselines: Sequence[type[Analysis]] = _BASELINES,
) -> Figure:
    """Draw baselines, and for each size of a client's data the bounds and what is really lost.

    The latter takes long, so it is drawn at every sixth place only.
    """
    for kind in baselines:
        figure.curves[kind.name] = _positive([(x, value(kind, 0, x)) for x in places])
    for d in sizes:
        for kind in _COMPARED:
            series = [(x, value(kind, d, x)) for x in places]
            figure.curves[f"{kind.name} d={d}"] = _positive(series)
        figure.curves[f"realised d={d}"] = _positive([(x, realised(d, x)) for x in places[::6]])
    return figure


def epsilon_delta(_: dict[str, Any]) -> Figure:
    """Return δ over ε at p = q = 0.1, σ = 1."""
    figure = Figure(
        name="eps_vs_delta",
        title="δ over ε, one round, p = q = 0.1, σ = 1",
        x_label="ε",
        y_label="δ",
        caption=f"The paper's source carries no points for this figure. {_WHY}",
    )
    return _draw_deltas(figure, 2.5, (1, 10, 30, 100), sigma=1.0)


def _draw_deltas(figure: Figure, end: float, sizes: Sequence[int], *, sigma: float) -> Figure:
    return _draw(
        figure,
        np.linspace(0, end, 60).tolist(),
        sizes,
        lambda kind, d, epsilon: kind(Round(0.1, 0.1, d, sigma)).delta(epsilon),
        lambda d, epsilon: realised_delta(Round(0.1, 0.1, d, sigma), epsilon)[0],
    )


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
    return _draw(
        figure,
        np.geomspace(1.0, 11.3, 25).tolist(),
        (1, 10, 30, 100),
        lambda kind, d, s: kind(Round(0.1, 0.1, d, s)).epsilon(delta),
        lambda d, s: _realised_epsilon(Round(0.1, 0.1, d, s), delta),
    )


def _realised_epsilon(round_: Round, delta: float) -> float:
    return realised_epsilon(round_, delta, start=Certified(round_).epsilon(delta))[0]


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
    return _draw(
        figure,
        np.linspace(0.5, 2.8, 47).tolist(),
        (1, 10, 30, 100),
        lambda kind, d, s: kind(Round(0.1, 0.1, d, s)).delta(epsilon),
        lambda d, s: realised_delta(Round(0.1, 0.1, d, s), epsilon)[0],
    )


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
            f"points nor its settings here, so the check-in curve need not be the paper's. {_WHY}"
        ),
    )
    _draw_deltas(figure, 1.0, (10, 100), sigma=3.0)
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
    return _draw(
        figure,
        np.geomspace(rate, 1, 25).tolist(),
        (2, 30, 1000),
        lambda kind, d, q: kind(Round(rate / q, q, d, sigma)).epsilon(delta),
        lambda d, q: _realised_epsilon(Round(rate / q, q, d, sigma), delta),
        baselines=_BASELINES[:2],
    )


def sigma_table() -> list[dict[str, object]]:
    """Return the noise that each analysis asks for in both scenarios at (0.015, 1e-6)."""
    rows: list[dict[str, object]] = []
    for scenario, setting in SCENARIOS.items():
        p, q, d = setting["p"], setting["q"], int(setting["d"])
        sigmas = {
            name: least_sigma(kind, p=p, q=q, d=d, epsilon=0.015, delta=1e-6, rounds=1)
            for name, kind in SCHEMES.items()
        }
        enough = Round(p, q, d, sigmas["certified"])
        sigmas["realised"] = realised_sigma_after(enough, 1, 0.015, 1e-6)
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


# In the paper's order: the first is its figure 1.
FIGURES: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "eps_vs_delta": epsilon_delta,
    "eps_vs_sigma": epsilon_sigma,
    "delta_vs_sigma": delta_sigma,
    "comparison_with_literature": check_ins,
    "p_q_trade_off": p_q_trade_off,
}
_NOT_DRAWN = {
    6: "shows trainings: coinflower paper experiments per-iteration --scenario many-small",
    7: "shows trainings: coinflower paper experiments per-iteration --scenario few-large",
    8: "shows the network, which is the model paper-cnn",
}


def require_drawable_figure(number: int) -> None:
    """Refuse a number that is not one of the figures that can be computed.

    Raises:
        UserError: Saying what the figure shows instead.
    """
    if 1 <= number <= len(FIGURES):
        return
    why = _NOT_DRAWN.get(number, "is not in the paper")
    raise UserError(f"figure = {number} {why}. Figures 1 to {len(FIGURES)} can be drawn.")
