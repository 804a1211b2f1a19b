"""Prometheus metrics of a server over HTTP; what clients spend is theirs, and not among them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.machines.status_file import standing
from coinflower.server.journal import read_metrics
from coinflower.server.settings import Settings

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Name, type, help, and the figure of the last round that it shows.
_LAST_ROUND = (
    ("available_clients", "Clients that were there in the last round.", "available"),
    ("participants", "Clients that were asked for a gradient in the last round.", "participants"),
    ("answered", "Clients that answered in the last round.", "answered"),
    ("dropped", "Answers of the last round that could not be used.", "dropped"),
    ("round_seconds", "How long the last round took.", "seconds"),
)
_TOTALS = (
    ("participations_total", "Gradients asked for, over all rounds.", "participants"),
    ("answers_total", "Answers over all rounds.", "answered"),
    ("dropped_total", "Answers that could not be used, over all rounds.", "dropped"),
    ("received_bytes_total", "Bytes of answers over all rounds.", "received_bytes"),
    ("rounds_seconds_total", "Time spent in rounds.", "seconds"),
)


def render_metrics(settings: Settings, folder: Path) -> str:
    """Return the metrics of a server in Prometheus' text format."""
    rows, now = read_metrics(settings.state), standing(settings, folder)
    lines: list[str] = []
    _add(lines, "rounds_total", "counter", "Rounds played.", len(rows))
    _add(lines, "last_round", "gauge", "Number of the last round.", now["round"])
    _add(lines, "planned_rounds", "gauge", "Rounds of the plan.", now["rounds"])
    _add(lines, "nodes_online", "gauge", "Nodes that are online.", now["online"])
    _add(lines, "run_failed", "gauge", "Whether the run failed.", int(now["run"] == "failed"))
    for name, text, key in _TOTALS:
        _add(lines, name, "counter", text, sum(row[key] for row in rows))
    for name, text, key in _LAST_ROUND:
        if rows:
            _add(lines, name, "gauge", text, rows[-1][key])
    if now["accuracy"] is not None:
        text = "Accuracy on the public test set, when last measured."
        _add(lines, "accuracy", "gauge", text, now["accuracy"])
    metrics = {name: value for name, value in (now["metrics"] or {}).items() if value is not None}
    if metrics:
        lines += [
            "# HELP coinflower_metric Metric on the public test set, when last measured.",
            "# TYPE coinflower_metric gauge",
            *(f"coinflower_metric{{name={_label(name)}}} {metrics[name]}" for name in metrics),
        ]
    return "\n".join(lines) + "\n"


def _add(lines: list[str], name: str, kind: str, text: str, value: float) -> None:
    full = f"coinflower_{name}"
    lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {value}"]


def _label(text: str) -> str:
    """Return the value of a label; a task of one's own may give metrics any name."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@contextlib.contextmanager
def metrics_server(
    settings: Settings, folder: Path, *, host: str, port: int | None
) -> Iterator[None]:
    """Serve ``/metrics`` as long as the block lasts; without a port, do nothing.

    Raises:
        DeploymentError: The port is in use.
    """
    if port is None:
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = render_metrics(settings, folder) if found else "Look at /metrics.\n"
            content = body.encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise DeploymentError(
            f"Metrics cannot be served on {host}:{port}: {error.strerror}."
        ) from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
