"""Prometheus metrics of a server over HTTP; what clients spend is theirs, and not among them."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from coinflower.accounting.errors import UserError
from coinflower.client.page.access import Access, DeniedError, is_loopback
from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.machines.experiment import Experiment
from coinflower.deploy.machines.queue import ExperimentQueue
from coinflower.deploy.machines.standing import running_in, standing
from coinflower.deploy.machines.status_file import is_served, read_status_file
from coinflower.server.journal import read_metrics

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
# What clients' records said, with noise; never under the name of what public data says.
_PRIVATE = (
    (
        "private_metric",
        "value",
        "Noisy metric on clients' own records, when last evaluated.",
    ),
    (
        "private_metric_standard_error",
        "standard_error",
        "Standard error of the noisy metric on clients' own records.",
    ),
)


class _Families:
    """Metrics as they are told: each with its help and type once, then every value that it has."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, kind: str, text: str, value: float, /, **labels: str) -> None:
        """Add a value."""
        full = f"coinflower_{name}"
        head = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        told = ",".join(f"{label}={_label(said)}" for label, said in labels.items())
        line = f"{full}{{{told}}} {value}" if told else f"{full} {value}"
        self._families.setdefault(full, head).append(line)

    def text(self) -> str:
        """Return them in Prometheus' text format."""
        return "".join(f"{line}\n" for lines in self._families.values() for line in lines)


def render_metrics(folder: Path) -> str:
    """Return the metrics of a server, with the name of the experiment as a label."""
    told = _Families()
    online = read_status_file(folder).get("online", 0) if is_served(folder) else 0
    told.add("nodes_online", "gauge", "Nodes that are online.", online)
    running = running_in(folder)
    for experiment in ExperimentQueue(folder).all():
        _add(told, experiment, standing(experiment, running))
    return told.text()


def _add(told: _Families, experiment: Experiment, now: Mapping[str, Any]) -> None:
    rows, name = read_metrics(experiment.settings.state), experiment.name
    add = functools.partial(told.add, experiment=name)
    add("rounds_total", "counter", "Rounds played.", len(rows))
    add("last_round", "gauge", "Number of the last round.", now["round"])
    add("planned_rounds", "gauge", "Rounds of the plan.", now["rounds"])
    at_work = now["state"] in ("enrolling", "running", "stopping")
    add("run_active", "gauge", "Whether the run is at work.", int(at_work))
    add("run_failed", "gauge", "Whether the run failed.", int(now["state"] == "failed"))
    for metric, text, key in _TOTALS:
        add(metric, "counter", text, sum(row[key] for row in rows))
    for metric, text, key in _LAST_ROUND:
        if rows:
            add(metric, "gauge", text, rows[-1][key])
    if now["accuracy"] is not None:
        text = "Accuracy on the public test set, when last measured."
        add("accuracy", "gauge", text, now["accuracy"])
    for measured, value in (now["metrics"] or {}).items():
        if value is not None:
            text = "Metric on the public test set, when last measured."
            add("metric", "gauge", text, value, name=measured)
    for measured, figure in (now["private_metrics"] or {}).items():
        for metric, key, text in _PRIVATE:
            if figure[key] is not None:
                add(metric, "gauge", text, figure[key], name=measured)


def _label(text: str) -> str:
    """Return the value of a label; a task of one's own may give metrics any name."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@contextlib.contextmanager
def metrics_server(folder: Path, *, host: str, port: int | None) -> Iterator[None]:
    """Serve ``/metrics`` as long as the block lasts; without a port, do nothing.

    Raises:
        DeploymentError: The port is in use.
    """
    if port is None:
        yield
        return

    # A page of another site, led to this machine by its name, must not read them in a browser here.
    access = Access(host=host) if is_loopback(host) else None

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            status, body = self._told()
            content = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _told(self) -> tuple[int, str]:
            if self.path != "/metrics":
                return 404, "Look at /metrics.\n"
            try:
                if access is not None:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    access.check("GET", headers)
                return 200, render_metrics(folder)
            except DeniedError as denied:
                return denied.status, f"{denied}\n"
            except UserError as error:  # a file of the server's is damaged
                return 500, f"{error}\n"

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
