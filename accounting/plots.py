"""Pictures of privacy curves, for the command line and the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.names import analyses_of
from coinflower.accounting.analyses.realised import Realised
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.composition.tightness import realised_delta_after, realised_epsilon_after
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_up

SUFFIXES = (".png", ".svg", ".pdf")


def new_axes(title: str, x_label: str, y_label: str, *, height: float = 5.0) -> tuple[Any, Any]:
    """Return a figure and its axes in the house look."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(7.5, height))
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, which="both", alpha=0.25)
    return figure, axes


def new_panels(rows: int, columns: int) -> tuple[Any, Any]:
    """Return a figure with a table of small axes that share their scales, rows of columns."""
    plt = _pyplot()
    return plt.subplots(  # type: ignore[no-any-return]
        *(rows, columns),
        figsize=(3.2 * columns + 1.2, 2.6 * rows + 0.6),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    # Words stay words in an SVG, and the same figure gives the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "coinflower"})
    from matplotlib import pyplot as plt

    return plt


def require_drawable(path: Path | None) -> Path | None:
    """Return the path; refuse one that cannot be drawn to."""
    if path is not None and path.suffix not in SUFFIXES:
        raise UserError(f"{path} cannot be drawn: its name must end in {', '.join(SUFFIXES)}.")
    if path is not None and not path.parent.is_dir():
        raise UserError(f"{path} cannot be drawn: there is no folder {path.parent}.")
    return path


def save(figure: Any, *paths: Path) -> None:
    """Write the figure to each path and forget it."""
    from matplotlib import pyplot as plt

    for path in paths:
        undated = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=150, bbox_inches="tight", metadata=undated)
    plt.close(figure)


def _caption(round_: Round, *, sigma: bool = True) -> str:
    parts = [f"p = {round_.p:g}", f"q = {round_.q:g}", f"d = {round_.d:,}"]
    if sigma:
        parts.append(f"σ = {rounded_up(round_.noise_multiplier)}")
    if round_.is_capped:
        parts.append(f"cap = {round_.cap:g}")
    return ", ".join(parts)


def draw_epsilon_over_rounds(path: Path, cost: Analysis, rounds: int, delta: float) -> None:
    """Draw ε at ``delta`` as rounds go by."""
    counts = np.unique(np.rint(np.geomspace(1, max(rounds, 2), 24)).astype(int)).tolist()
    spent = [epsilon_after([(cost, count)], delta) for count in counts]
    figure, axes = new_axes(_caption(cost.round), "rounds", f"ε at δ = {delta:g}")
    axes.plot(counts, spent, marker=".", label=cost.title)
    axes.axvline(rounds, color="grey", linestyle=":")
    axes.legend()
    save(figure, path)


def draw_delta_over_epsilon(path: Path, cost: Analysis, rounds: int, epsilon: float) -> None:
    """Draw δ over ε around the ε asked about."""
    span = np.linspace(0, max(2 * epsilon, 1e-3), 30).tolist()
    reached = [delta_after([(cost, rounds)], value) for value in span]
    figure, axes = new_axes(f"{_caption(cost.round)}, rounds = {rounds:,}", "ε", "δ")
    axes.semilogy(span, reached, marker=".", label=cost.title)
    axes.axvline(epsilon, color="grey", linestyle=":")
    axes.legend()
    save(figure, path)


def draw_epsilon_over_sigma(path: Path, cost: Analysis, rounds: int, delta: float) -> None:
    """Draw ε over the noise multiplier around the one found."""
    found = cost.round.noise_multiplier
    sigmas = np.geomspace(found / 2, found * 2, 15).tolist()
    spent = [epsilon_after([(cost.with_noise(sigma), rounds)], delta) for sigma in sigmas]
    figure, axes = new_axes(
        f"{_caption(cost.round, sigma=False)}, rounds = {rounds:,}", "σ", f"ε at δ = {delta:g}"
    )
    axes.loglog(sigmas, spent, marker=".", label=cost.title)
    axes.axvline(found, color="grey", linestyle=":")
    axes.legend()
    save(figure, path)


def draw_schemes_over_sigma(
    path: Path, round_: Round, *, rounds: int, delta: float, span: tuple[float, float]
) -> None:
    """Draw ε over σ for every scheme, with the realised lower bound; the round's own σ is idle."""
    title = f"{_caption(round_, sigma=False)}, rounds = {rounds:,}"
    figure, axes = new_axes(title, "σ", f"ε at δ = {delta:g}")
    axes.set_xscale("log")

    def spent(cost: Analysis, sigma: float) -> float:
        return epsilon_after([(cost.with_noise(sigma), rounds)], delta)

    def realised(sigma: float) -> float:
        return realised_epsilon_after(replace(round_, noise_multiplier=sigma), rounds, delta)

    _draw_schemes(axes, round_, np.geomspace(*span, 16).tolist(), spent, realised)
    save(figure, path)


def draw_schemes_over_epsilon(path: Path, round_: Round, *, rounds: int, epsilon: float) -> None:
    """Draw δ over ε for every scheme, with the realised lower bound."""
    figure, axes = new_axes(f"{_caption(round_)}, rounds = {rounds:,}", "ε", "δ")

    def reached(cost: Analysis, value: float) -> float:
        return delta_after([(cost, rounds)], value)

    def realised(value: float) -> float:
        return realised_delta_after(round_, rounds, value)

    span = np.linspace(0, max(2 * epsilon, 1e-3), 16).tolist()
    _draw_schemes(axes, round_, span, reached, realised)
    save(figure, path)


def _draw_schemes(
    axes: Any,
    round_: Round,
    span: list[float],
    value: Callable[[Analysis, float], float],
    realised: Callable[[float], float],
) -> None:
    for kind in analyses_of(round_).values():
        style = "-" if kind.is_upper_bound else ":"
        axes.semilogy(span, _shown(value(kind(round_), at) for at in span), style, label=kind.title)
    lower = _shown(realised(at) for at in span[::5])
    axes.semilogy(span[::5], lower, "kv", markersize=5, label=Realised.title)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


def _shown(values: Iterable[float]) -> list[float]:
    """Return what a logarithmic axis can show, gaps elsewhere."""
    return [value if value > 1e-15 else math.nan for value in values]
