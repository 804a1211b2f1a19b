"""A local federation on disk: terms, settings, and a policy and a ledger for every client."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.deploy.local.folder import Cluster, empty_folder, fresh_name
from coinflower.deploy.local.local_clients import place_of, sizes_of, write_clients
from coinflower.deploy.local.local_terms import evaluation_of, terms_of
from coinflower.deploy.local.plan import Plan
from coinflower.deploy.trackers.following import require_trackers
from coinflower.learning import (
    Dataset,
    device_of,
    load_data,
    model_for,
    task_for,
    usual_task,
    with_test_part,
)
from coinflower.learning.data.arrays import save_npz
from coinflower.learning.models.handed import FOLDER, hand_over
from coinflower.learning.optimizer import usual_for
from coinflower.server.settings import Settings, save_settings

_LONG_SECONDS = 3600.0
# Clients that share a machine wait for each other.
_SECONDS_PER_CLIENT = 0.3


def prepare(plan: Plan, folder: Path | None, *, notary: X25519PrivateKey | None = None) -> Cluster:
    """Write everything that the federation needs into a new folder.

    Args:
        plan: What is asked for.
        folder: Where to; None makes one in ``runs``.
        notary: The notary's key in mode masked; a fresh one if left out.

    Raises:
        ValueError: The plan makes no sense, or the folder is in use.
    """
    require_trackers(plan.trackers)
    loaded = load_data(plan.data, schema=plan.schema, numbers=None, download=plan.download)
    data = with_test_part(loaded)
    sizes = sizes_of(plan, data)
    clients = len(sizes)
    experiment = fresh_name("run")
    task = task_for(loaded, plan.task or usual_task(loaded), plan.task_options)
    handed = None
    if plan.model is not None and not isinstance(plan.model, str):
        handed = hand_over(plan.model, classes=task.outputs, options=plan.model_options)
        handed.offer()
        plan = replace(plan, model=handed.name, model_options={})
    notary = notary or X25519PrivateKey.generate()
    evaluation = evaluation_of(plan, max(sizes))
    terms = terms_of(plan, experiment, data, task, sizes, notary, evaluation)
    # Now, not in a round, shows what does not go together.
    model = model_for(
        terms.model,
        data,
        task,
        options=terms.model_options,
        tuning=plan.tuning,
        device=device_of(plan.device),
    )
    parameters = sum(each.numel() for each in model.parameters())
    folder = empty_folder(folder, experiment)
    cluster = Cluster(
        folder=folder.absolute(),
        terms=terms,
        delta=plan.delta,
        insecure=plan.insecure_seed is not None,
        evaluation=None if evaluation is None else evaluation.terms(terms, task),
    )
    (cluster.folder / "clients").mkdir(parents=True)
    if handed is not None:
        handed.write(cluster.folder / FOLDER)
    if cluster.notary is not None:
        cluster.notary.create(notary)
    (cluster.folder / "terms.json").write_text(json.dumps(terms.to_fields(), indent=1) + "\n")
    if plan.schema is not None:
        cluster.schema.write_bytes(plan.schema.read_bytes())
    where = place_of(plan.data)
    shared = _SECONDS_PER_CLIENT * clients
    save_settings(
        Settings(
            terms=terms,
            state=cluster.server,
            test_data=where if loaded.test_part is not None else _save_test_part(cluster, data),
            schema=cluster.schema if plan.schema and loaded.test_part is not None else None,
            pretrained=plan.tuning.pretrained,
            device=plan.device,
            least_clients=clients if plan.waits_for_all else 1,
            expected_clients=clients,
            no_other_clients=True,
            update=usual_for(plan.update, numbers=terms.task == "regression"),
            evaluate_every=plan.evaluate_every,
            evaluation=evaluation,
            poll_seconds=plan.poll_seconds,
            round_seconds=plan.round_seconds,
            download_precision=plan.download_precision,
            patience_seconds=_LONG_SECONDS if plan.waits_for_all else max(120.0, 2 * shared),
            reply_seconds=_LONG_SECONDS if plan.waits_for_all else max(60.0, shared),
            trackers=plan.trackers,
            insecure_seed=plan.insecure_seed,
        ),
        cluster.settings,
    )
    write_clients(cluster, plan, sizes, parameters)
    return cluster


def _save_test_part(cluster: Cluster, data: Dataset) -> str:
    """Keep the rows that no client has, for the server to measure with."""
    path = cluster.folder / "test.npz"
    save_npz(path, data.test)
    return str(path)
