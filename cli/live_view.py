"""What a person sees of a run in progress."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.rounding import rounded_up
from coinflower.deploy.local.folder import Cluster
from coinflower.deploy.terminal import say
from coinflower.learning.tasks.metrics import brief, private_sentence
from coinflower.protocol.policy import load_policy
from coinflower.server.journal import last_measured, last_private

_EPSILON_SECONDS = 2.0


class LiveView:
    """A bar and a line of figures, redrawn in place; plain lines where there is no terminal.

    Args:
        cluster: The federation.
        console: Where to draw.
        quiet: Draw nothing.
        clock: Seconds, for the time left.
        spent: ε of the client with most records; by default as its ledger says.
    """

    def __init__(
        self,
        cluster: Cluster,
        console: Console,
        *,
        quiet: bool,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] | None = None,
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
        self._refusals = ""
        # Where everybody always answers, nobody but the clients knows who takes part.
        self._who = "asked" if cluster.terms.mode.answers_always else "took part"
        self._spent = spent or _spent_by_the_largest(cluster)
        self._epsilon = 0.0
        self._epsilon_at = -math.inf

    def __enter__(self) -> LiveView:
        if not self._quiet and self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            self._live.stop()

    def update(self, status: dict[str, Any], metrics: list[dict[str, Any]]) -> None:
        """Show the state of the run."""
        if self._quiet:
            return
        refusals = status.get("refusals", "")
        if not self._console.is_terminal:
            self._print_news(metrics, refusals)
        elif metrics:
            self._live.update(self.panel(metrics, refusals))
        else:
            state = Text(f"{status.get('state', 'starting')}: clients are enrolling")
            self._live.update(Panel(Group(state, *_warnings(refusals)), title="coinflower"))

    def _print_news(self, metrics: list[dict[str, Any]], refusals: str) -> None:
        """Print a line now and then, as logs want it: no frames, no folding."""
        if refusals != self._refusals:
            self._refusals = refusals
            say(refusals or "All clients that refused have joined.")
        if metrics and metrics[-1]["round"] // 10 > self._shown:
            self._shown = metrics[-1]["round"] // 10
            say(f"round {metrics[-1]['round']}: {self._line(metrics)}")

    def panel(self, metrics: list[dict[str, Any]], refusals: str = "") -> Panel:
        """Return the view after these rounds."""
        self._bar.update(self._task, completed=metrics[-1]["round"])
        line = Text(self._line(metrics))
        return Panel(Group(self._bar, line, *_warnings(refusals)), title="coinflower")

    def _line(self, metrics: list[dict[str, Any]]) -> str:
        last = metrics[-1]
        measured = last_measured(metrics)
        line = (
            f"{self._who} {last['participants']} of {last['available']}   "
            f"expected batch {last['expected_batch']:.0f}   "
            f"{brief(measured and measured[1])}   "
        )
        private = last_private(metrics)
        if private is not None:
            line += f"clients' records: {private_sentence(private[1])}   "
        if not self._cluster.terms.mode.is_private:
            return line + "NO PRIVACY"
        return line + self._largest_epsilon()

    def _largest_epsilon(self) -> str:
        """Return ε of the largest client; read every other second."""
        if self._clock() - self._epsilon_at > _EPSILON_SECONDS:
            self._epsilon_at = self._clock()
            with contextlib.suppress(LedgerError):  # a view must not end a run; it asks again
                self._epsilon = self._spent()
        return f"largest ε {rounded_up(self._epsilon)}"


def _spent_by_the_largest(cluster: Cluster) -> Callable[[], float]:
    """Return a question to the ledger of the client with most records, for none loses more."""
    sizes = [load_policy(path).declared_size for path in cluster.policies]
    path = cluster.ledger(sizes.index(max(sizes)))

    def spent() -> float:
        with Ledger.open(path, read_only=True) as ledger:
            return ledger.spent(cluster.delta)

    return spent


def _warnings(refusals: str) -> list[Text]:
    return [Text(refusals, style="yellow")] if refusals else []
