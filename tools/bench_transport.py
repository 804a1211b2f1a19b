"""What the transport of a round costs, beside a bare HTTP transfer of the same bytes.

Whole federations of four clients through the command line, with a model that hardly computes. The
bytes on the wire are what the SuperLink reads and writes in a round. The same bytes are then sent
to another process by plain HTTP and back again, half each way.

Run with ``python -m tools.bench_transport``; needs Linux.
"""

from __future__ import annotations

import http.client
import http.server
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MILLIONS = (0.2, 1, 5, 11)
MOST_TIMES_BARE = 3.0
LIMITED = (5, 11)
_ROUNDS = 8
_CLIENTS = 4
_INPUTS, _CLASSES = 64, 10
_MODEL = """from torch import nn


def model(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear({inputs}, {width}), nn.Linear({width}, classes))
"""


def run() -> list[dict[str, Any]]:
    """Measure everything; see ``tools.bench`` for what the rows mean."""
    return [row for millions in MILLIONS for row in _rows(millions)]


def _rows(millions: float) -> Iterator[dict[str, Any]]:
    before = _bare_seconds(round(4e6 * millions))
    seconds, moved, peaks = _federation(millions)
    # Per byte, and both before and after: the machine may have other work.
    bare = statistics.mean([before, _bare_seconds(round(4e6 * millions))]) * moved
    what = f"round of {_CLIENTS} clients, {millions:g} M parameters"
    yield _row(f"{what}, seconds", seconds)
    yield _row(f"{what}, MB on the wire", moved / 1e6)
    for process, peak in peaks.items():
        yield _row(f"{what}, peak memory of the {process}, MB", peak)
    limit = MOST_TIMES_BARE if millions in LIMITED else None
    yield _row(f"{what}, time / a bare HTTP transfer", seconds / bare, limit)


def _row(measure: str, value: float, limit: float | None = None) -> dict[str, Any]:
    met = limit is None or value <= limit
    return {"measure": measure, "value": value, "limit": limit, "met": met}


def _federation(millions: float) -> tuple[float, float, dict[str, float]]:
    """Return the median seconds and the bytes of a round, and the peak memory of each process.

    The first round, in which everything is loaded, does not count.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        width = round(millions * 1e6 / (_INPUTS + _CLASSES + 1))
        (folder / "wide.py").write_text(_MODEL.format(inputs=_INPUTS, width=width))
        out = folder / "run"
        command = [str(Path(sys.executable).parent / "coinflower"), "run", "--json"]
        command += ["--clients", str(_CLIENTS), "--rounds", str(_ROUNDS), "-p", "1", "-q", "0.02"]
        command += ["--sigma", "1", "--learning-rate", "0.01", "--evaluate-every", str(_ROUNDS)]
        command += ["--model", "wide:model", "--out", str(out)]
        environment = {**os.environ, "PYTHONPATH": str(folder)}
        peaks = {"clients": 0.0, "SuperLink": 0.0, "server": 0.0}
        moved: dict[int, int] = {}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as running:
            while running.poll() is None:
                played = _played(out)
                for process, pid in _processes(running.pid).items():
                    peaks[process] = max(peaks[process], _peak_memory(pid))
                    if process == "SuperLink":
                        moved[played] = max(moved.get(played, 0), _moved_bytes(pid))
                time.sleep(0.02)
        if running.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {running.returncode}")
        lines = (out / "server" / "metrics.jsonl").read_text().splitlines()
    first, last = min(moved.keys() - {0}), max(moved.keys() - {_ROUNDS})
    a_round = (moved[last] - moved[first]) / (last - first)
    return statistics.median(json.loads(line)["seconds"] for line in lines[1:]), a_round, peaks


def _played(out: Path) -> int:
    try:
        return len((out / "server" / "metrics.jsonl").read_text().splitlines())
    except OSError:
        return 0


def _processes(root: int) -> dict[str, int]:
    """Return the processes of a federation by what they are."""
    found = {"clients": root}
    below = [root]
    while below:
        pid = below.pop()
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        below += map(int, children)
        if b"guard.py" not in command and b"fenced_superlink" in command:
            found["SuperLink"] = pid
        elif b"flwr-serverapp" in command:
            found["server"] = pid
    return found


def _peak_memory(pid: int) -> float:
    """Return the most memory a process ever had, in MB; 0 once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        return 0.0


def _moved_bytes(pid: int) -> int:
    """Return what a process has read and written so far; its connections are nearly all of it."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    figures = dict(line.split(": ") for line in lines)
    return int(figures["rchar"]) + int(figures["wchar"])


class _Bare(http.server.BaseHTTPRequestHandler):
    """Keeps what was uploaded last, and gives it to whoever asks."""

    protocol_version = "HTTP/1.1"
    kept = b""

    def do_POST(self) -> None:
        type(self).kept = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(self.kept)

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _serve(pipe: Connection) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Bare) as server:
        pipe.send(server.server_port)
        server.serve_forever()


def _bare_seconds(size: int, times: int = 9) -> float:
    """Return the median seconds a byte of an upload and a download of so many bytes."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    server.start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", ours.recv())
        body = os.urandom(size)
        taken = []
        for _ in range(times):
            started = time.perf_counter()
            connection.request("POST", "/", body)
            connection.getresponse().read()
            connection.request("GET", "/")
            connection.getresponse().read()
            taken.append((time.perf_counter() - started) / (2 * size))
        return statistics.median(taken)
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    for row in run():
        print(row)
