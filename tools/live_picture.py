"""A picture of the live view of a run that has been, as documents show it.

    coinflower run --out runs/shown
    python -m tools.live_picture runs/shown docs/img/live-view.svg

Its rounds are played again with the seconds that they took, up to about two thirds of the run.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.cli.live_view import LiveView
from coinflower.deploy.local.folder import Cluster
from coinflower.protocol.policy import load_policy
from coinflower.server.journal import read_metrics
from coinflower.server.settings import load_settings

_WIDTH = 92
# Fonts that rich would have fetched from elsewhere.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def draw(folder: Path, picture: Path, *, share: float = 0.66) -> None:
    """Draw the view as it was when that share of the rounds had been played."""
    settings = load_settings(folder / "settings.toml")
    cluster = Cluster(
        folder=folder.absolute(),
        terms=settings.terms,
        delta=load_policy(folder / "clients" / "client-0.toml").budget.delta,
        insecure=settings.insecure_seed is not None,
    )
    metrics = read_metrics(settings.state)
    shown = metrics[: max(1, round(share * len(metrics)))]
    now = 0.0
    console = Console(record=True, width=_WIDTH, file=io.StringIO())
    sizes = [load_policy(path).declared_size for path in cluster.policies]
    cost = cluster.terms.round_cost(max(sizes))
    assert cost is not None
    view = LiveView(
        cluster,
        console,
        quiet=False,
        clock=lambda: now,
        spent=lambda: epsilon_after([(cost, row["round"])], cluster.delta),
    )
    for count, row in enumerate(shown, start=1):
        now += row["seconds"]
        panel = view.panel(shown[:count])
    console.print(panel)
    picture.write_text(_FONTS.sub("", console.export_svg(title="coinflower run")))


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
