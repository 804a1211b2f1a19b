"""What a person sees of a run while it goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.rounding import rounded_up
from coinflower.deploy.local.cluster import Cluster

_EPSILON_SECONDS = 2.0


class LiveView:
    """A bar and a line of figures, redrawn in place; plain lines where there is no terminal.

    Args:
        cluster: The federation.
        console: Where to draw.
        quiet: Draw nothing.
        clock: Seconds, for the time left.
    """

    def __init__(
        self,
        cluster: Cluster,
        console: Console,
        *,
        quiet: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._console = console
        self._quiet = quiet
        self._bar = Progress(
            TextColumn("round"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            get_time=clock,
        )
        self._clock = clock
        self._task = self._bar.add_task("rounds", total=cluster.terms.rounds)
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._shown = -1
        self._epsilon = 0.0
        self._epsilon_at = -math.inf
        self._epsilon_round = 0

    def __enter__(self) -> LiveView:
        if not self._quiet:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._quiet:
            self._live.stop()

    def update(self, status: dict[str, Any], metrics: list[dict[str, Any]]) -> None:
        """Show the state of the run."""
        if self._quiet:
            return
        if not metrics:
            state = status.get("state", "starting")
            self._live.update(Panel(Text(f"{state}: clients are enrolling"), title="coinflower"))
            return
        last = metrics[-1]
        self._live.update(self.panel(metrics))
        if not self._console.is_terminal and last["round"] // 10 > self._shown:
            self._shown = last["round"] // 10
            self._console.print(f"round {last['round']}: {self._line(metrics)}", highlight=False)

    def panel(self, metrics: list[dict[str, Any]]) -> Panel:
        """Return the view after these rounds."""
        self._bar.update(self._task, completed=metrics[-1]["round"])
        return Panel(Group(self._bar, Text(self._line(metrics))), title="coinflower")

    def _line(self, metrics: list[dict[str, Any]]) -> str:
        last = metrics[-1]
        measured = [row["accuracy"] for row in metrics if row["accuracy"] is not None]
        accuracy = f"{measured[-1]:.1%}" if measured else "–"
        line = (
            f"participants {last['participants']} of {last['available']}   "
            f"expected batch {last['expected_batch']:.0f}   accuracy {accuracy}   "
        )
        if not self._cluster.terms.mode.is_private:
            return line + "NO PRIVACY"
        return line + self._largest_epsilon(last["round"])

    def _largest_epsilon(self, round_: int) -> str:
        """Return ε of the largest client; recomputed every other second."""
        if self._clock() - self._epsilon_at > _EPSILON_SECONDS:
            from coinflower.protocol.policy import load_policy

            sizes = [load_policy(path).declared_size for path in self._cluster.policies]
            cost = self._cluster.terms.round_cost(max(sizes))
            assert cost is not None
            self._epsilon = epsilon_after([(cost, round_)], self._cluster.delta)
            self._epsilon_at, self._epsilon_round = self._clock(), round_
        behind = "" if self._epsilon_round == round_ else f" after round {self._epsilon_round}"
        return f"largest ε {rounded_up(self._epsilon)}{behind}"
