"""Statistics of a table by a federation on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.deploy.local.folder import Cluster, empty_folder, fresh_name
from coinflower.deploy.local.local_clients import sizes_of, write_clients
from coinflower.deploy.local.local_terms import masked_fields_of, sigma_of
from coinflower.deploy.local.plan import Plan
from coinflower.learning import load_data, with_test_part
from coinflower.learning.data.tables.schema import load_schema
from coinflower.learning.queries.statistics import Statistics
from coinflower.protocol.query import Query
from coinflower.protocol.terms import NO_MODEL, Terms
from coinflower.server.settings import Settings, save_settings
from coinflower.server.statistics import STATISTICS


def prepare_statistics(plan: Plan, query: Query, folder: Path | None) -> Cluster:
    """Write everything that the federation needs into a new folder.

    Args:
        plan: Data, clients, mode and budget; whatever concerns a model is not used.
        query: What is asked.
        folder: Where to; None makes one in ``runs``.

    Raises:
        ValueError: The plan makes no sense, or the folder is in use.
    """
    if plan.schema is None:
        raise UserError("Statistics are of tables: name the schema that says how they are read.")
    Statistics(query, load_schema(plan.schema))  # refuses columns that it does not have
    data = with_test_part(load_data(plan.data, schema=plan.schema, download=plan.download))
    sizes, notary = sizes_of(plan, data), X25519PrivateKey.generate()
    experiment, sigma = fresh_name("statistics"), sigma_of(plan, max(sizes))
    folder = empty_folder(folder, experiment).absolute()
    terms = Terms(
        experiment=experiment,
        mode=plan.mode,
        p=plan.p,
        q=plan.q,
        clip_norm=plan.clip_norm,
        cap=plan.cap,
        noise_multiplier=sigma,
        rounds=plan.rounds,
        rounds_per_invitation=plan.rounds_per_invitation,
        unit=plan.unit,
        model=NO_MODEL,
        classes=1,
        schema=data.train.schema,
        query=query,
        **masked_fields_of(plan, sigma, sizes, notary),
    )
    insecure = plan.insecure_seed is not None
    cluster = Cluster(folder=folder, terms=terms, delta=plan.delta, insecure=insecure)
    (folder / "clients").mkdir(parents=True)
    if cluster.notary is not None:
        cluster.notary.create(notary)
    cluster.schema.write_bytes(plan.schema.read_bytes())
    save_settings(
        Settings(
            terms=terms,
            state=cluster.server,
            schema=cluster.schema,
            expected_clients=len(sizes),
            no_other_clients=True,
            insecure_seed=plan.insecure_seed,
        ),
        cluster.settings,
    )
    write_clients(cluster, plan, sizes, parameters=0)
    return cluster


def statistics_results(cluster: Cluster) -> dict[str, Any]:
    """Return what came out, and what it cost the client that lost most."""
    found = cluster.server / STATISTICS
    if not found.exists():
        raise UserError("No round was played, so there are no statistics.")
    spent = []
    for index in range(len(cluster.policies)):
        with Ledger.open(cluster.ledger(index), read_only=True) as ledger:
            spent.append(ledger.spent(cluster.delta))
    told = json.loads(found.read_text())
    return {
        **{key: told[key] for key in ("columns", "unit", "rounds")},
        "epsilon": max(spent),
        "delta": cluster.delta,
        "sigma": cluster.terms.noise_multiplier,
        "mode": str(cluster.terms.mode),
        "insecure": cluster.insecure,
        "out": str(cluster.folder),
    }
