"""Running a prepared federation on this machine: SuperLink, nodes, the run, and its results."""

from __future__ import annotations

import csv
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.app import SIMULATED_POLICIES
from coinflower.deploy.flower.run_app import write_app
from coinflower.deploy.flower.superlink import Superlink
from coinflower.deploy.local.folder import Cluster
from coinflower.deploy.local.local_notary import LOG, local_notary, notary_results
from coinflower.deploy.local.nodes import NodeKind, local_nodes
from coinflower.deploy.runs import RunFailedError, failure, require_alive
from coinflower.learning import make_task
from coinflower.learning.models.handed import FOLDER, is_handed_over
from coinflower.learning.models.saving import MODEL
from coinflower.protocol.policy import load_policy
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import write_atomically
from coinflower.server.journal import (
    STATUS,
    MetricsReader,
    last_measured,
    last_private,
    metrics_of,
    read_metrics,
    read_status,
)
from coinflower.server.settings import load_settings, save_settings

_LOOK_SECONDS = 0.25

Progress = Callable[[dict[str, Any], list[dict[str, Any]]], None]


def reopen(folder: Path) -> Cluster:
    """Return a federation that was run before, set to continue where it stopped.

    Raises:
        ValueError: There is none in the folder.
    """
    folder = folder.absolute()
    path = folder / "settings.toml"
    if not path.exists():
        raise UserError(f"{folder} holds no run; name the folder that a run was written to.")
    settings = load_settings(path)
    save_settings(replace(settings, resume=True), path)
    (settings.state / STATUS).unlink(missing_ok=True)  # speaks of the process that stopped
    policies = sorted(folder.glob("clients/client-*.toml"))
    if not policies:
        raise UserError(f"{folder} holds no clients.")
    terms = settings.terms
    task = make_task(terms.task, terms.task_options, outputs=terms.classes)
    return Cluster(
        folder=folder,
        terms=terms,
        delta=load_policy(policies[0]).budget.delta,
        insecure=settings.insecure_seed is not None,
        evaluation=None if settings.evaluation is None else settings.evaluation.terms(terms, task),
    )


def run_cluster(
    cluster: Cluster,
    *,
    kind: NodeKind = NodeKind.THREADS,
    port: int | None = None,
    stop: threading.Event,
    progress: Progress,
) -> list[str]:
    """Run to the end, or until ``stop`` is set; nothing that was started stays.

    Returns:
        The clients that died on the way, each with the log that may say why.

    Raises:
        RunFailedError: The server gave up, with its reason.
        SuperlinkError: The SuperLink could not be started or ended.
    """
    app = write_app(
        cluster.folder / "app",
        serverapp="coinflower.server.app:app",
        clientapp="coinflower.client.app:app",
        config={"settings": str(cluster.settings)},
    )
    policies = cluster.policies
    with (
        _superlink(cluster, kind, port) as superlink,
        local_notary(cluster.notary, superlink.address, cluster.folder / "logs") as notary_died,
        local_nodes(kind, superlink.address, policies, cluster.folder / "logs") as nodes,
    ):
        run_id = superlink.start_run(app)
        metrics = MetricsReader(cluster.server)
        while not stop.wait(_LOOK_SECONDS):
            status = superlink.status(run_id)
            state = read_status(cluster.server)
            metrics.read_new()
            progress(state, metrics.rows)
            dead = _told_dead(cluster, kind, nodes.dead())
            if status.completed:
                return dead + _told_notary(cluster, died=notary_died())
            if status.finished:
                log = cluster.folder / "logs" / "server.log"
                log.write_text(superlink.run_log(run_id))
                raise failure(read_status(cluster.server), status.details, log)
            if len(dead) == len(policies):
                superlink.stop_run(run_id)
                raise RunFailedError(f"All clients died: {'; '.join(dead)}.")
            require_alive(state, again=f"coinflower run --resume {cluster.folder}")
        superlink.stop_run(run_id)
        dead = _told_dead(cluster, kind, nodes.dead())
        return dead + _told_notary(cluster, died=notary_died())


def _told_notary(cluster: Cluster, *, died: bool) -> list[str]:
    return [f"the notary (see {cluster.folder / 'logs' / LOG})"] * died


def _told_dead(cluster: Cluster, kind: NodeKind, dead: Sequence[int]) -> list[str]:
    logs = cluster.folder / "logs"
    return [f"client-{index} (see {logs / _log_of(kind, index)})" for index in dead]


def _log_of(kind: NodeKind, index: int) -> str:
    return "clients.log" if kind is NodeKind.THREADS else f"client-{index}.log"


def _superlink(cluster: Cluster, kind: NodeKind, port: int | None) -> Superlink:
    folder, environment = cluster.folder / "superlink", dict[str, str]()
    if is_handed_over(cluster.terms.model):
        # The server finds the model by its name, and what that imports where this process does.
        model = str(cluster.folder / FOLDER)
        environment["PYTHONPATH"] = os.pathsep.join([model, *filter(None, sys.path)])
        if model not in sys.path:
            sys.path.append(model)
    if kind is not NodeKind.SIMULATED:
        return Superlink(folder, port=port, environment=environment)
    # Simulated nodes have no configuration of their own: they find their policies by number.
    environment[SIMULATED_POLICIES] = str(cluster.folder / "clients")
    return Superlink(
        folder, port=port, simulated_nodes=len(cluster.policies), environment=environment
    )


def collect_results(cluster: Cluster, started: float) -> dict[str, Any]:
    """Write the run's results into its folder and return them.

    Clients' ε comes from their ledgers, which only a local run may read: on real machines the
    server never learns it.
    """
    metrics = read_metrics(cluster.server)
    measured = last_measured(metrics)
    last = None if measured is None else measured[1]
    terms = cluster.terms
    results: dict[str, Any] = {
        "accuracy": (last or {}).get("accuracy"),
        "metrics": last,
        "task": terms.task,
        "rounds": metrics[-1]["round"] if metrics else 0,
        "planned_rounds": terms.rounds,
        "mode": str(terms.mode),
        "private": terms.mode.is_private,
        "unit": str(terms.unit),
        "insecure": cluster.insecure,
        "sigma": terms.noise_multiplier,
        "cap": terms.cap if terms.is_capped else None,
        "delta": cluster.delta,
        "p": terms.p,
        "q": terms.q,
        "seconds": time.monotonic() - started,
        "out": str(cluster.folder),
        "clients": [_client(cluster, index) for index in range(len(cluster.policies))],
    }
    if cluster.evaluation is not None:
        results["evaluation"] = _evaluation(cluster, cluster.evaluation, metrics)
    if cluster.notary is not None:
        results["notary"] = notary_results(cluster.notary, terms)
    (cluster.folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (cluster.folder / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    if metrics:
        _write_csv(cluster.folder / "metrics.csv", metrics)
    model = cluster.server / MODEL
    if model.exists():
        with model.open("rb") as file:
            write_atomically(cluster.folder / model.name, iter(lambda: file.read(1 << 20), b""))
    return results


def _evaluation(cluster: Cluster, terms: Terms, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what clients' own records said of the model, and what that alone cost at most."""
    measured = last_private(rows)
    charged = [_charges(cluster, index, terms.ledger_key) for index in range(len(cluster.policies))]
    return {
        "metrics": None if measured is None else measured[1],
        "round": None if measured is None else measured[0],
        "times": sum("private_metrics" in row for row in rows),
        "planned_times": terms.rounds,
        "sigma": terms.noise_multiplier,
        "epsilon": max(charged),
    }


def _charges(cluster: Cluster, index: int, experiment: str) -> float:
    """Return ε of the rounds that one experiment charged to a client."""
    with Ledger.open(cluster.ledger(index), read_only=True) as ledger:
        tallies = [tally for tally in ledger.tallies() if tally.experiment == experiment]
    rounds = [(tally.terms, tally.charged) for tally in tallies if tally.charged]
    return epsilon_after(rounds, cluster.delta) if rounds else 0.0


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a line per round, with a column per metric."""
    flat = [{**row, **(metrics_of(row) or {}), **_flat_private(row)} for row in rows]
    nested = ("metrics", "private_metrics")
    names = [name for name in dict.fromkeys(itertools.chain(*flat)) if name not in nested]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(flat)


def _flat_private(row: dict[str, Any]) -> dict[str, float | None]:
    return {
        f"private_{name}{ending}": figure[key]
        for name, figure in (row.get("private_metrics") or {}).items()
        for ending, key in (("", "value"), ("_standard_error", "standard_error"))
    }


def _client(cluster: Cluster, index: int) -> dict[str, Any]:
    policy = load_policy(cluster.policy(index))
    with Ledger.open(cluster.ledger(index), read_only=True) as ledger:
        stated = ledger.statement(cluster.delta)
        return {
            "client": f"client-{index}",
            "samples": policy.declared_size,
            "epsilon": stated.spent if cluster.terms.mode.is_private else None,
            "budget": policy.budget.epsilon,
            "charged_rounds": stated.rounds,
            "participated_rounds": stated.took_part,
        }
