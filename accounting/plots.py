"""Pictures of privacy curves, for the command line and the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coinflower.accounting.analyses.names import SCHEMES
from coinflower.accounting.analyses.realised import Realised
from coinflower.accounting.analyses.schemes import Certified, Scheme
from coinflower.accounting.composition.compose import delta_after, epsilon_after
from coinflower.accounting.composition.tightness import realised_delta_after, realised_epsilon_after
from coinflower.accounting.errors import UserError
from coinflower.accounting.rounding import rounded_up

SUFFIXES = (".png", ".svg", ".pdf")


def new_axes(title: str, x_label: str, y_label: str, *, height: float = 5.0) -> tuple[Any, Any]:
    """Return a figure and its axes in the house look."""
    import matplotlib as mpl

    mpl.use("Agg")
    # Words stay words in an SVG, and the same figure gives the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "coinflower"})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, height))
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, which="both", alpha=0.25)
    return figure, axes


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


def _caption(terms: Scheme) -> str:
    return f"p = {terms.p:g}, q = {terms.q:g}, d = {terms.d:,}"


def draw_epsilon_over_rounds(path: Path, terms: Scheme, rounds: int, delta: float) -> None:
    """Draw ε at ``delta`` as rounds go by."""
    counts = np.unique(np.rint(np.geomspace(1, max(rounds, 2), 24)).astype(int)).tolist()
    spent = [epsilon_after([(terms, count)], delta) for count in counts]
    figure, axes = new_axes(
        f"{_caption(terms)}, σ = {rounded_up(terms.noise_multiplier)}",
        "rounds",
        f"ε at δ = {delta:g}",
    )
    axes.plot(counts, spent, marker=".", label=terms.title)
    axes.axvline(rounds, color="grey", linestyle=":")
    axes.legend()
    save(figure, path)


def draw_delta_over_epsilon(path: Path, terms: Scheme, rounds: int, epsilon: float) -> None:
    """Draw δ over ε around the ε asked about."""
    span = np.linspace(0, max(2 * epsilon, 1e-3), 30).tolist()
    reached = [delta_after([(terms, rounds)], value) for value in span]
    figure, axes = new_axes(
        f"{_caption(terms)}, σ = {rounded_up(terms.noise_multiplier)}, rounds = {rounds:,}",
        "ε",
        "δ",
    )
    axes.semilogy(span, reached, marker=".", label=terms.title)
    axes.axvline(epsilon, color="grey", linestyle=":")
    axes.legend()
    save(figure, path)


def draw_epsilon_over_sigma(path: Path, terms: Scheme, rounds: int, delta: float) -> None:
    """Draw ε over the noise multiplier around the one found."""
    sigmas = np.geomspace(terms.noise_multiplier / 2, terms.noise_multiplier * 2, 15).tolist()
    spent = [
        epsilon_after([(replace(terms, noise_multiplier=sigma), rounds)], delta) for sigma in sigmas
    ]
    figure, axes = new_axes(f"{_caption(terms)}, rounds = {rounds:,}", "σ", f"ε at δ = {delta:g}")
    axes.loglog(sigmas, spent, marker=".", label=terms.title)
    axes.axvline(terms.noise_multiplier, color="grey", linestyle=":")
    axes.legend()
    save(figure, path)


def draw_schemes_over_sigma(
    path: Path,
    *,
    p: float,
    q: float,
    d: int,
    rounds: int,
    delta: float,
    span: tuple[float, float],
) -> None:
    """Draw ε over σ for every scheme, with the realised lower bound."""
    title = f"p = {p:g}, q = {q:g}, d = {d:,}, rounds = {rounds:,}"
    figure, axes = new_axes(title, "σ", f"ε at δ = {delta:g}")
    axes.set_xscale("log")

    def spent(kind: type[Scheme], sigma: float) -> float:
        return epsilon_after([(kind(p=p, q=q, d=d, noise_multiplier=sigma), rounds)], delta)

    def realised(sigma: float) -> float:
        terms = Certified(p=p, q=q, d=d, noise_multiplier=sigma)
        return realised_epsilon_after(terms, rounds, delta)

    _draw_schemes(axes, np.geomspace(*span, 16).tolist(), spent, realised)
    save(figure, path)


def draw_schemes_over_epsilon(
    path: Path, *, p: float, q: float, d: int, rounds: int, sigma: float, epsilon: float
) -> None:
    """Draw δ over ε for every scheme, with the realised lower bound."""
    title = f"p = {p:g}, q = {q:g}, d = {d:,}, σ = {rounded_up(sigma)}, rounds = {rounds:,}"
    figure, axes = new_axes(title, "ε", "δ")

    def reached(kind: type[Scheme], value: float) -> float:
        return delta_after([(kind(p=p, q=q, d=d, noise_multiplier=sigma), rounds)], value)

    def realised(value: float) -> float:
        terms = Certified(p=p, q=q, d=d, noise_multiplier=sigma)
        return realised_delta_after(terms, rounds, value)

    _draw_schemes(axes, np.linspace(0, max(2 * epsilon, 1e-3), 16).tolist(), reached, realised)
    save(figure, path)


def _draw_schemes(
    axes: Any,
    span: list[float],
    value: Callable[[type[Scheme], float], float],
    realised: Callable[[float], float],
) -> None:
    for kind in SCHEMES.values():
        style = "-" if kind.is_upper_bound else ":"
        axes.semilogy(span, _shown(value(kind, at) for at in span), style, label=kind.title)
    lower = _shown(realised(at) for at in span[::5])
    axes.semilogy(span[::5], lower, "kv", markersize=5, label=Realised.title)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


def _shown(values: Iterable[float]) -> list[float]:
    """Return what a logarithmic axis can show, gaps elsewhere."""
    return [value if value > 1e-15 else math.nan for value in values]
