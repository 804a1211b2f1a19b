"""What the transport of a round costs, beside a bare HTTP transfer of the same bytes.

Whole federations of four clients through the command line, with a model that hardly computes. The
bytes on the wire are what the SuperLink reads and writes in a round. The same bytes are then sent
to another process by plain HTTP and back again, half each way.

A round also computes. What of that nothing can be sent beside is measured on its own, in this
process: the gradient of one client, the addition of the last sum, and the noise. The rest of the
computing counts as transport here, even where it happens at the same time.

Run with ``python -m tools.bench.transport``; needs Linux.
"""

from __future__ import annotations

import http.client
import http.server
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from coinflower.learning import (
    FixedPoint,
    SecureRandom,
    add_noise,
    clipped_gradient_sum,
    fine_cell,
    flatten_parameters,
    load_parameters,
)
from tools.bench.federations import Watched, watch

MILLIONS = (0.2, 1, 5, 11)
MOST_TIMES_BARE = 3.0
LIMITED = (5, 11)
_ROUNDS = 8
_CLIENTS = 4
_INPUTS, _CLASSES = 64, 10
_DIGITS, _RATE = 1437, 0.02
_MODEL = """from torch import nn


def model(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear({inputs}, {width}), nn.Linear({width}, classes))
"""


def run() -> list[dict[str, Any]]:
    """Measure everything; see ``tools.bench.table`` for what the rows mean."""
    return [row for millions in MILLIONS for row in _rows(millions)]


def _rows(millions: float) -> Iterator[dict[str, Any]]:
    before = _bare_seconds(round(4e6 * millions))
    seen = _federation(millions)
    seconds, moved = seen.median_seconds, seen.a_round(seen.moved)
    # Per byte, and both before and after: the machine may have other work.
    bare = statistics.mean([before, _bare_seconds(round(4e6 * millions))]) * moved
    computing = _computing_seconds(millions)
    what = f"round of {_CLIENTS} clients, {millions:g} M parameters"
    yield _row(f"{what}, seconds", seconds)
    yield _row(f"{what}, seconds of one gradient, one addition and the noise", computing)
    yield _row(f"{what}, MB on the wire", moved / 1e6)
    for process, peak in seen.memory.items():
        yield _row(f"{what}, peak memory of the {process}, MB", peak)
    limit = MOST_TIMES_BARE if millions in LIMITED else None
    transport = max(seconds - computing, 0.0)
    yield _row(f"{what}, the rest of the time / a bare HTTP transfer", transport / bare, limit)


def _row(measure: str, value: float, limit: float | None = None) -> dict[str, Any]:
    met = limit is None or value <= limit
    return {"measure": measure, "value": value, "limit": limit, "met": met}


def _federation(millions: float) -> Watched:
    width = round(millions * 1e6 / (_INPUTS + _CLASSES + 1))
    options = ["--clients", str(_CLIENTS), "--rounds", str(_ROUNDS), "-p", "1", "-q", str(_RATE)]
    options += ["--sigma", "1", "--learning-rate", "0.01", "--evaluate-every", str(_ROUNDS)]
    wide = _MODEL.format(inputs=_INPUTS, width=width)
    return watch([*options, "--model", "wide:model"], modules={"wide": wide})


def _computing_seconds(millions: float, times: int = 3) -> float:
    """Return the seconds of what a round computes while nothing can be sent.

    On one thread, as clients and server compute.
    """
    width = round(millions * 1e6 / (_INPUTS + _CLASSES + 1))
    layers = nn.Linear(_INPUTS, width), nn.Linear(width, _CLASSES)
    model = nn.Sequential(nn.Flatten(), *layers)
    rows = round(_RATE * _DIGITS / _CLIENTS)
    inputs, targets = torch.rand(rows, _INPUTS), torch.arange(rows) % _CLASSES
    weights = flatten_parameters(model).numpy()
    taken = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(times):
            total = FixedPoint(weights.size, fine_cell(1.0))
            started = time.perf_counter()
            load_parameters(model, weights)
            answer = clipped_gradient_sum(model, inputs, targets, 1.0).numpy()
            total.add(answer)
            add_noise(total, 1.0, SecureRandom())
            taken.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    return statistics.median(taken)


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
