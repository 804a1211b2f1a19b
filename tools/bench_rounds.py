"""How fast rounds go over a real local federation, and how little its nodes need.

Whole federations through the command line: resident nodes against stock Flower (its SuperNodes, and
its pause of 3 s between two looks for replies), and blocks of ten invitations against single ones.

Run with ``python -m tools.bench_rounds``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LEAST_SPEEDUP_OVER_STOCK = 8.0
LEAST_SPEEDUP_OF_BLOCKS = 1.5
MOST_MEMORY_MB = 1000.0


def run() -> list[dict[str, Any]]:
    """Measure everything; see ``tools.bench`` for what the rows mean."""
    ours, _ = _federation(clients=10, rounds=20, p=0.5, block=1)
    stock, _ = _federation(
        clients=10, rounds=4, p=0.5, block=1, extra=("--nodes", "stock", "--poll-seconds", "3")
    )
    single, _ = _federation(clients=10, rounds=40, p=0.1, block=1)
    blocks, _ = _federation(clients=10, rounds=40, p=0.1, block=10)
    _, memory = _federation(clients=50, rounds=3, p=0.5, block=1)
    return [
        _at_least(
            "round of 10 nodes, p = 0.5, stock time / ours", stock / ours, LEAST_SPEEDUP_OVER_STOCK
        ),
        _at_least(
            "round of 10 nodes, p = 0.1, K = 1 time / K = 10",
            single / blocks,
            LEAST_SPEEDUP_OF_BLOCKS,
        ),
        {
            "measure": "round of 10 nodes, p = 0.5, seconds",
            "value": ours,
            "limit": None,
            "met": True,
        },
        {
            "measure": "50 resident nodes, peak memory of their process, MB",
            "value": memory,
            "limit": MOST_MEMORY_MB,
            "met": memory <= MOST_MEMORY_MB,
        },
    ]


def _at_least(measure: str, value: float, limit: float) -> dict[str, Any]:
    return {
        "measure": f"{measure} (at least)",
        "value": value,
        "limit": limit,
        "met": value >= limit,
    }


def seconds_per_round(*, clients: int, rounds: int, extra: tuple[str, ...]) -> float:
    """Return the mean seconds per round of a federation of the command line."""
    return _federation(clients=clients, rounds=rounds, p=0.5, block=1, extra=extra)[0]


def _federation(
    *, clients: int, rounds: int, p: float, block: int, extra: tuple[str, ...] = ()
) -> tuple[float, float]:
    """Run a federation and return the mean seconds per round and the peak memory in MB.

    The first round of a run, in which everything is loaded, does not count.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [str(Path(sys.executable).parent / "coinflower"), "run", "--json"]
        command += ["--clients", str(clients), "--rounds", str(rounds), "-p", str(p)]
        command += ["--rounds-per-invite", str(block), "--sigma", "1", "--out", str(out), *extra]
        command += ["--evaluate-every", str(rounds)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
            memory = 0.0
            while running.poll() is None:
                memory = max(memory, _peak_memory(running.pid))
                time.sleep(0.5)
        if running.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {running.returncode}")
        lines = (out / "server" / "metrics.jsonl").read_text().splitlines()
    return statistics.mean(json.loads(line)["seconds"] for line in lines[1:]), memory


def _peak_memory(pid: int) -> float:
    """Return the most memory a process ever had, in MB; 0 once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        return 0.0


if __name__ == "__main__":
    for row in run():
        print(row)
