"""A picture of an audit: what is claimed, and what is proven to be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coinflower.accounting.plots import new_axes, save


def draw_audit(figures: dict[str, Any], path: Path) -> None:
    """Draw claimed and audited ε of every claim.

    Args:
        figures: What :func:`coinflower.experiments.audit.audit.run_audit` returned.
        path: Where to.
    """
    claims = figures["claims"]
    figure, axes = new_axes(
        f"Audit, {figures['trials']:,} trials", "ε", "", height=0.6 + 0.22 * len(claims)
    )
    rows = range(len(claims))
    claimed = [claim["claimed_epsilon"] for claim in claims]
    audited = [claim["audited_epsilon"] for claim in claims]
    axes.barh(rows, audited, color="tab:blue", alpha=0.7, label="proven to be lost")
    axes.scatter(claimed, rows, marker="|", s=90, color="black", label="claimed")
    paper = [(claim["paper_epsilon"], row) for row, claim in enumerate(claims)]
    paper = [point for point in paper if point[0] is not None]
    if paper:
        axes.scatter(
            *zip(*paper, strict=True), marker="x", s=24, color="tab:red", label="the paper's"
        )
    axes.set_yticks(
        list(rows), [f"{claim['name']}, δ = {claim['delta']:g}" for claim in claims], fontsize=7
    )
    axes.invert_yaxis()
    axes.legend()
    save(figure, path)
