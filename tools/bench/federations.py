"""Whole federations through the command line, watched from outside: time, memory, CPU, requests.

Needs Linux: memory and CPU are read from ``/proc``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLIENTS, SUPERLINK, SERVER = "clients", "SuperLink", "server"
_TICK = os.sysconf("SC_CLK_TCK")
# Loaded by every Python process of the federation; the SuperLink notes the path of each request.
_COUNTER = """import os, sys
if any("fenced_superlink" in argument for argument in sys.orig_argv):
    from uvicorn.protocols.http import httptools_impl
    asked = os.open(os.environ["COUNTED_REQUESTS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    begin = httptools_impl.RequestResponseCycle.__init__
    def note(self, scope, *arguments, **options):
        os.write(asked, scope["path"].encode() + b"\\n")
        begin(self, scope, *arguments, **options)
    httptools_impl.RequestResponseCycle.__init__ = note
"""


@dataclass
class Watched:
    """What was seen of a federation.

    Attributes:
        rounds: What the server noted of each.
        memory: Peak of each kind of process, in MB.
        cpu: Seconds of all processes, by how many rounds had been played.
        moved: Bytes that the SuperLink had read and written, by how many rounds had been played.
        requests: How often it had been asked, by how many rounds had been played.
    """

    rounds: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    cpu: dict[int, float] = field(default_factory=dict)
    moved: dict[int, int] = field(default_factory=dict)
    requests: dict[int, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Of the rounds after the first, in which everything is loaded."""
        return float(statistics.mean(each["seconds"] for each in self.rounds[1:]))

    @property
    def median_seconds(self) -> float:
        """The same, but the median."""
        return float(statistics.median(each["seconds"] for each in self.rounds[1:]))

    def a_round(self, counted: dict[int, Any]) -> float:
        """Return how much came of something in a round, between the first and the last."""
        first, last = min(counted.keys() - {0}), max(counted.keys() - {len(self.rounds)})
        return float(counted[last] - counted[first]) / (last - first)

    @property
    def answers_a_round(self) -> float:
        """How many sums a round had."""
        return float(statistics.mean(each["answered"] for each in self.rounds[1:]))


def watch(options: Sequence[str], *, modules: dict[str, str] | None = None) -> Watched:
    """Run ``coinflower run`` with these options to its end.

    Args:
        options: Of the command.
        modules: Python files that the federation can import, by name.

    Raises:
        RuntimeError: It failed.
    """
    seen = Watched()
    with _started(options, modules or {}) as (running, out, requests):
        while running.poll() is None:
            played = _lines(out / "server" / "metrics.jsonl")
            spent = 0.0
            for kind, pid in _processes(running.pid):
                spent += _cpu(pid)
                if kind:
                    seen.memory[kind] = max(seen.memory.get(kind, 0.0), peak_memory(pid))
                if kind == SUPERLINK:
                    seen.moved[played] = max(seen.moved.get(played, 0), _moved(pid))
            seen.cpu[played] = max(seen.cpu.get(played, 0.0), spent)
            seen.requests[played] = _lines(requests)
            time.sleep(0.02)
        if running.returncode != 0:
            raise RuntimeError(f"coinflower run {' '.join(options)}: {running.returncode}")
        text = (out / "server" / "metrics.jsonl").read_text()
    seen.rounds = [json.loads(line) for line in text.splitlines()]
    return seen


@contextmanager
def _started(
    options: Sequence[str], modules: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path, Path]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for module, text in {"sitecustomize": _COUNTER, **modules}.items():
            (folder / f"{module}.py").write_text(text)
        out, requests = folder / "run", folder / "requests"
        command = [str(Path(sys.executable).parent / "coinflower"), "run", "--json"]
        command += [*options, "--out", str(out)]
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        added = {"PYTHONPATH": path, "COUNTED_REQUESTS": str(requests)}
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, env={**os.environ, **added}
        ) as running:
            yield running, out, requests


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def _processes(root: int) -> Iterator[tuple[str, int]]:
    """Yield the processes of a federation with what they are, if anybody asks for that."""
    below = [root]
    while below:
        pid = below.pop()
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        below += map(int, children)
        if pid == root:
            yield CLIENTS, pid
        elif b"guard.py" not in command and b"fenced_superlink" in command:
            yield SUPERLINK, pid
        else:
            yield SERVER if b"flwr-serverapp" in command else "", pid


def peak_memory(pid: int) -> float:
    """Return the most memory a process ever had, in MB; 0 once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        return 0.0


def _cpu(pid: int) -> float:
    """Return the processor's seconds that a process has had; 0 once it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICK


def _moved(pid: int) -> int:
    """Return what a process has read and written so far; its connections are nearly all of it."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    figures = dict(line.split(": ") for line in lines)
    return int(figures["rchar"]) + int(figures["wchar"])


def cpu_of_a_health_request(times: int = 300) -> float:
    """Return the processor's seconds that a SuperLink and its caller need for ``/health``."""
    import httpx

    from coinflower.deploy.flower.superlink import Superlink

    with tempfile.TemporaryDirectory() as name, Superlink(Path(name)) as superlink:
        pids = [pid for kind, pid in _processes(os.getpid()) if kind == SUPERLINK]
        with httpx.Client() as client:
            url = f"http://{superlink.address}/health"
            client.get(url)  # the connection is there
            before = time.process_time() + sum(map(_cpu, pids))
            for _ in range(times):
                client.get(url).raise_for_status()
            return (time.process_time() + sum(map(_cpu, pids)) - before) / times
