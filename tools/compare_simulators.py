"""The same federation in the simulator and in Flower's own simulation engine, and what each costs.

Clients of 30 records, q = 0.1, the paper's network, and p for a mean batch of 70 (at most p = 1),
through ``coinflower simulate`` and ``coinflower run --nodes ray``. Memory is that of all processes
together, shared pages counted once (Linux only).

Run with ``python -m tools.compare_simulators 10 100 1000``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coinflower.experiments.simulator.scenarios import MEAN_BATCH, SETTINGS, synthetic_data

SETTING = SETTINGS["many-small"]
_STEPS = 300
_ROUNDS = 4  # the first, in which everything is loaded, does not count
_LOOK_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a round of a federation costs.

    Attributes:
        clients: Number of clients.
        engine: What played them.
        seconds: Mean time of a round.
        megabytes: Peak memory of all processes together.
        start: Time from the command to its end that no counted round took.
    """

    clients: int
    engine: str
    seconds: float
    megabytes: float
    start: float


def measure(clients: int) -> list[Costs]:
    """Return the costs in the simulator and under Ray."""
    p = min(1.0, MEAN_BATCH / (SETTING.q * SETTING.d * clients))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = _write_data(folder / "data.npz", clients * SETTING.d)
        shared = ["--data", str(data), "--clients", str(clients), "-p", f"{p:.6g}"]
        shared += ["-q", str(SETTING.q), "--sigma", "1", "--model", "paper-cnn", "--json"]
        return [_simulator(clients, shared, folder), _ray(clients, shared, folder)]


def _simulator(clients: int, shared: list[str], folder: Path) -> Costs:
    command = ["simulate", SETTING.name, *shared, "--iterations", str(_STEPS)]
    command += ["--evaluate-every", str(_STEPS), "--out", str(folder / "simulation")]
    output = folder / "simulator.json"
    lasted, megabytes = watch(command, output)
    seconds = 1 / float(json.loads(output.read_text())["steps_per_second"])
    return Costs(
        clients=clients,
        engine="simulator",
        seconds=seconds,
        megabytes=megabytes,
        start=lasted - _STEPS * seconds,
    )


def _ray(clients: int, shared: list[str], folder: Path) -> Costs:
    out = folder / "run"
    command = ["run", "--nodes", "ray", *shared, "--rounds", str(_ROUNDS), "--out", str(out)]
    lasted, megabytes = watch([*command, "--evaluate-every", str(_ROUNDS)], folder / "ray.json")
    lines = (out / "server" / "metrics.jsonl").read_text().splitlines()
    counted = [float(json.loads(line)["seconds"]) for line in lines[1:]]
    return Costs(
        clients=clients,
        engine="Ray",
        seconds=statistics.mean(counted),
        megabytes=megabytes,
        start=lasted - sum(counted),
    )


def _write_data(path: Path, records: int) -> Path:
    data = synthetic_data(records, classes=62)
    np.savez(
        path,
        x_train=data.train.inputs,
        y_train=data.train.targets,
        x_test=data.test.inputs,
        y_test=data.test.targets,
    )
    return path


def watch(arguments: list[str], output: Path) -> tuple[float, float]:
    """Run our command and return how long it took, and the most memory it had, in MB.

    Args:
        arguments: What follows ``coinflower``.
        output: Takes what the command prints.

    Raises:
        RuntimeError: It failed.
    """
    command = [str(Path(sys.executable).parent / "coinflower"), *arguments]
    started = time.monotonic()
    most = 0.0
    with output.open("wb") as file, subprocess.Popen(command, stdout=file) as running:
        while running.poll() is None:
            most = max(most, sum(_memory(pid) for pid in _descendants(running.pid)))
            time.sleep(_LOOK_SECONDS)
    if running.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {running.returncode}")
    return time.monotonic() - started, most


def _descendants(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            below = children.read_text().split()
        except OSError:  # it has just ended
            continue
        for child in below:
            yield from _descendants(int(child))


def _memory(pid: int) -> float:
    """Return a process' share of the memory in use, in MB; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(text.split("\nPss:")[1].split()[0]) * 1024 / 1e6
    except (OSError, IndexError):
        return 0.0


def main() -> None:
    """Print the costs for every number of clients given, as a Markdown table."""
    print("| clients | engine | seconds per round | rounds per second | memory, MB | besides, s |")
    print("|---:|---|---:|---:|---:|---:|")
    for clients in map(int, sys.argv[1:]):
        for costs in measure(clients):
            rate = 1 / costs.seconds
            print(
                f"| {costs.clients} | {costs.engine} | {costs.seconds:.2g} | {rate:.2g} "
                f"| {costs.megabytes:.0f} | {costs.start:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
