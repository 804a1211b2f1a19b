"""What a round costs with 10 to 1,000 resident nodes, and where it goes.

Whole federations through the command line: a SuperLink, a ServerApp, and all nodes as threads of
one process, each with a ledger and data of its own. From outside we read what each part takes of
the processor and of memory. One series asks ever more clients, the other enrols ever more and asks
about five of them, so that the two costs can be told apart.

Run with ``python -m tools.bench.scale``, which also writes the table in docs/scale.md; sizes may be
named, as in ``python -m tools.bench.scale 10 50``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
MOST_GROWTH_WITH_ENROLLED = 2.0
_LOOK_SECONDS = 0.2
# A thousand ledgers on one disk wait for each other; owners have a disk each.
_MEMORY = Path("/dev/shm")
_TICKS = os.sysconf("SC_CLK_TCK")
# By what their command lines hold.
_PARTS = {"fenced_superlink": "SuperLink", "flwr-serverapp": "ServerApp", "coinflower": "nodes"}


@dataclass(frozen=True, kw_only=True)
class Size:
    """A federation to measure."""

    clients: int
    p: float
    rounds: int


SIZES = (
    Size(clients=10, p=0.5, rounds=12),
    Size(clients=50, p=0.5, rounds=6),
    Size(clients=200, p=0.5, rounds=3),
    Size(clients=50, p=0.1, rounds=12),
    Size(clients=200, p=0.025, rounds=12),
    Size(clients=1000, p=0.005, rounds=8),
)


# Enrolled, drawn for each block, coins per invitation: what the model is asked about.
PLANNED = (
    (1_000, 1_000, 10),
    (10_000, 10_000, 100),
    (100_000, 100_000, 100),
    (1_000_000, 1_000_000, 100),
    (1_000_000, 10_000, 100),
)
_ASKED = 100


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was measured.

    Attributes:
        size: The federation.
        enrolled: Clients that were there, per round.
        asked: Clients asked for a gradient, per round.
        setting_up: Seconds until the first round was over: everybody enrolled and invited.
        seconds: Per round, the first left out.
        cpu: Seconds of processor time per round, by part.
        memory: Most megabytes that each part ever had.
    """

    size: Size
    enrolled: float
    asked: float
    setting_up: float
    seconds: float
    cpu: dict[str, float]
    memory: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Model:
    """Seconds per round = ``base`` + ``per_asked`` · asked + ``per_enrolled`` · enrolled."""

    base: float
    per_asked: float
    per_enrolled: float

    def seconds(self, asked: float, enrolled: float) -> float:
        """Return what a round should take."""
        return self.base + self.per_asked * asked + self.per_enrolled * enrolled


def measure(size: Size) -> Outcome:
    """Run a federation to its end and say what its rounds took."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        out = Path(folder) / "run"
        command = [str(Path(sys.executable).parent / "coinflower"), "run", "--json"]
        command += ["--clients", str(size.clients), "--rounds", str(size.rounds)]
        command += ["-p", str(size.p), "--rounds-per-invite", str(size.rounds), "--sigma", "1"]
        command += ["--out", str(out), "--evaluate-every", str(size.rounds)]
        metrics = out / "server" / "metrics.jsonl"
        started = time.monotonic()
        marks: list[tuple[int, float, dict[str, float]]] = []
        memory: dict[str, float] = {}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
            while running.poll() is None:
                done = _lines(metrics)
                now = time.monotonic()
                cpu, peak = _take_stock(running.pid)
                memory = {part: max(peak[part], memory.get(part, 0.0)) for part in peak} | {
                    part: most for part, most in memory.items() if part not in peak
                }
                if done > (marks[-1][0] if marks else 0):
                    marks.append((done, now, cpu))
                time.sleep(_LOOK_SECONDS)
        if running.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {running.returncode}")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    (first, _, before), (last, _, after) = marks[0], marks[-1]
    later = rows[first:]
    return Outcome(
        size=size,
        enrolled=float(np.mean([row["available"] for row in later])),
        asked=float(np.mean([row["participants"] for row in later])),
        setting_up=marks[0][1] - started,
        seconds=float(np.mean([row["seconds"] for row in later])),
        cpu={part: (after[part] - before.get(part, 0.0)) / (last - first) for part in after},
        memory=memory,
    )


def _lines(path: Path) -> int:
    with suppress(OSError):
        return path.read_bytes().count(b"\n")
    return 0


def _take_stock(root: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return seconds of processor time and most megabytes of each part so far."""
    cpu: dict[str, float] = {}
    memory: dict[str, float] = {}
    for pid in _family(root):
        with suppress(OSError, IndexError):
            command = Path(f"/proc/{pid}/cmdline").read_text()
            part = next((name for mark, name in _PARTS.items() if mark in command), None)
            if part is None:
                continue
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{pid}/status").read_text()
            peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
            cpu[part] = cpu.get(part, 0.0) + (int(fields[11]) + int(fields[12])) / _TICKS
            memory[part] = memory.get(part, 0.0) + peak
    return cpu, memory


def _family(root: int) -> Iterator[int]:
    """Yield a process and all below it.

    Asked of all processes rather than of the threads of these, of which there are thousands.
    """
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    family = [root]
    for pid in family:
        yield pid
        family += children.get(pid, [])


def fit(outcomes: Sequence[Outcome]) -> Model:
    """Return the model that fits best, in relation to what was measured; no cost is negative."""
    measured = np.array([one.seconds for one in outcomes])
    causes: NDArray[np.float64] = np.array([[1.0, one.asked, one.enrolled] for one in outcomes])
    base, per_asked, per_enrolled = nnls(causes / measured[:, None], np.ones(len(outcomes)))[0]
    return Model(base=base, per_asked=per_asked, per_enrolled=per_enrolled)


def fit_invitation(outcomes: Sequence[Outcome]) -> float:
    """Return what one client's question and short answer take, in seconds.

    Until the first round is over each client has answered two, and the other costs are the same.
    """
    clients = [float(one.size.clients) for one in outcomes]
    slope = np.polyfit(clients, [one.setting_up for one in outcomes], 1)[0]
    return max(0.0, float(slope)) / 2


def extrapolated(model: Model, invitation: float) -> list[str]:
    """Return a table of rounds that nobody measured: what the model says of larger federations."""
    lines = [
        "| enrolled | drawn per block (s·N) | coins per invitation (K) | asked per round | "
        "s per round on one SuperLink | of it invitations | SuperLinks for rounds of 30 s |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for enrolled, drawn, coins in PLANNED:
        inviting = invitation * drawn / coins
        seconds = model.seconds(_ASKED, enrolled) + inviting
        lines.append(
            f"| {enrolled:,} | {drawn:,} | {coins} | {_ASKED} | {seconds:.3g} | {inviting:.3g} | "
            f"{math.ceil(max(0.0, seconds - model.base) / (30 - model.base))} |"
        )
    return lines


def as_markdown(outcomes: Sequence[Outcome], machine: str) -> str:
    """Return the table of measured rounds, and the model that fits them."""
    model, invitation = fit(outcomes), fit_invitation(outcomes)
    lines = [
        f"Written by `python -m tools.bench.scale`: {machine}.",
        "",
        "| nodes | enrolled | p | asked per round | s per round | the model says "
        "| s until the first round | CPU s per round: SuperLink | ServerApp | nodes "
        "| MB: SuperLink | ServerApp | nodes |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in outcomes:
        cpu, memory = (
            " | ".join(f"{of.get(part, 0.0):{form}}" for part in _PARTS.values())
            for of, form in ((one.cpu, ".2f"), (one.memory, ".0f"))
        )
        said = model.seconds(one.asked, one.enrolled)
        lines.append(
            f"| {one.size.clients:,} | {one.enrolled:,.0f} | {one.size.p:g} | {one.asked:.1f} | "
            f"{one.seconds:.2f} | {said:.2f} | {one.setting_up:.0f} | {cpu} | {memory} |"
        )
    lines += [
        "",
        f"The model that fits: a round takes {model.base:.2f} s, {1e3 * model.per_asked:.0f} ms "
        f"for each client that is asked, and {1e3 * model.per_enrolled:.2f} ms for each that is "
        f"enrolled. One invitation, or one enrolment, takes {1e3 * invitation:.0f} ms.",
        "",
        "What the model says of federations that were **not** measured; the heartbeats of idle "
        "clients come on top ([below](#a-million-clients)):",
        "",
        *extrapolated(model, invitation),
    ]
    return "\n".join(lines)


def write_page(outcomes: Sequence[Outcome], machine: str) -> None:
    """Put the table into the page in place of the one that is there."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    table = as_markdown(outcomes, machine)
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def run() -> list[dict[str, Any]]:
    """Measure all sizes, write the page, and return rows; see ``tools.bench.table``."""
    outcomes = _measure_all(SIZES)
    few = next(one for one in outcomes if one.size.clients == 50 and one.size.p < 0.5)
    many = outcomes[-1]
    growth = (many.seconds / many.asked) / (few.seconds / few.asked) if many.asked else 1.0
    rows = [
        {
            "measure": f"round of {one.size.clients:,} nodes, {one.asked:.1f} asked, invited once, "
            "seconds",
            "value": one.seconds,
            "limit": None,
            "met": True,
        }
        for one in outcomes
    ]
    return [
        *rows,
        {
            "measure": "time per client asked, 1,000 nodes / 50 nodes, about 5 asked",
            "value": growth,
            "limit": MOST_GROWTH_WITH_ENROLLED,
            "met": growth <= MOST_GROWTH_WITH_ENROLLED,
        },
    ]


def _measure_all(sizes: Sequence[Size]) -> list[Outcome]:
    from tools.bench.table import describe_machine

    load = os.getloadavg()[0]
    outcomes = []
    for size in sizes:
        outcomes.append(measure(size))
        print(outcomes[-1], file=sys.stderr, flush=True)
    write_page(outcomes, f"{describe_machine()}, load {load:.1f} before")
    return outcomes


if __name__ == "__main__":
    wanted = {int(word) for word in sys.argv[1:]}
    _measure_all([size for size in SIZES if not wanted or size.clients in wanted])
