"""Pictures of privacy curves, for the command line and the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accounting.composition import delta_after, epsilon_after
from accounting.schemes import SCHEMES, Scheme, scheme_class

SUFFIXES = (".png", ".svg", ".pdf")


def new_axes(title: str, x_label: str, y_label: str, *, height: float = 5.0) -> tuple[Any, Any]:
    """Return a figure and its axes in the house look."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, height))
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(True, which="both", alpha=0.25)
    return figure, axes


def save(figure: Any, *paths: Path) -> None:
    """Write the figure to each path and forget it.

    Raises:
        ValueError: A suffix that cannot be drawn.
    """
    from matplotlib import pyplot as plt

    for path in paths:
        if path.suffix not in SUFFIXES:
            raise ValueError(f"{path} cannot be drawn: use one of {', '.join(SUFFIXES)}.")
        figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)


def _caption(terms: Scheme) -> str:
    return f"p = {terms.p:g}, q = {terms.q:g}, d = {terms.d:,}"


def draw_epsilon_over_rounds(path: Path, terms: Scheme, rounds: int, delta: float) -> None:
    """Draw ε at ``delta`` as rounds go by."""
    counts = np.unique(np.rint(np.geomspace(1, max(rounds, 2), 24)).astype(int)).tolist()
    spent = [epsilon_after([(terms, count)], delta) for count in counts]
    figure, axes = new_axes(
        f"{_caption(terms)}, σ = {terms.noise_multiplier:.4g}", "rounds", f"ε at δ = {delta:g}"
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
        f"{_caption(terms)}, σ = {terms.noise_multiplier:.4g}, rounds = {rounds:,}", "ε", "δ"
    )
    axes.semilogy(span, reached, marker=".", label=terms.title)
    axes.axvline(epsilon, color="grey", linestyle=":")
    axes.legend()
    save(figure, path)


def _sigmas_around(sigma: float) -> list[float]:
    values: list[float] = np.geomspace(sigma / 2, sigma * 2, 15).tolist()
    return values


def _epsilons(terms: Scheme, sigmas: Sequence[float], rounds: int, delta: float) -> list[float]:
    kind = type(terms)
    return [
        epsilon_after([(kind(p=terms.p, q=terms.q, d=terms.d, noise_multiplier=s), rounds)], delta)
        for s in sigmas
    ]


def draw_epsilon_over_sigma(path: Path, terms: Scheme, rounds: int, delta: float) -> None:
    """Draw ε over the noise multiplier around the one found."""
    sigmas = _sigmas_around(terms.noise_multiplier)
    figure, axes = new_axes(f"{_caption(terms)}, rounds = {rounds:,}", "σ", f"ε at δ = {delta:g}")
    axes.loglog(sigmas, _epsilons(terms, sigmas, rounds, delta), marker=".", label=terms.title)
    axes.axvline(terms.noise_multiplier, color="grey", linestyle=":")
    axes.legend()
    save(figure, path)


def draw_schemes(
    path: Path, *, p: float, q: float, d: int, rounds: int, sigma: float | None, delta: float | None
) -> None:
    """Draw ε over σ (δ given) or δ over ε (δ asked) for every scheme."""
    figure, axes = new_axes(f"p = {p:g}, q = {q:g}, d = {d:,}, rounds = {rounds:,}", "σ", "ε")
    for name in SCHEMES:
        terms = scheme_class(name)(p=p, q=q, d=d, noise_multiplier=sigma or 1.0)
        style = "-" if terms.is_upper_bound else ":"
        if delta is None:
            span = np.linspace(0, 3, 25).tolist()
            values = [delta_after([(terms, rounds)], value) for value in span]
            axes.set_xlabel("ε")
            axes.set_ylabel("δ")
        else:
            span = _sigmas_around(sigma) if sigma else np.geomspace(0.5, 20, 16).tolist()
            values = _epsilons(terms, span, rounds, delta)
            axes.set_xscale("log")
            axes.set_ylabel(f"ε at δ = {delta:g}")
        axes.semilogy(span, np.maximum(values, 1e-16), style, marker=".", label=terms.title)
    axes.legend(fontsize=8)
    save(figure, path)
