"""The clients of a local federation: their shares of the data, policies and ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.deploy.keys.keys import make_node_key
from coinflower.deploy.local.folder import Cluster
from coinflower.deploy.local.plan import Plan
from coinflower.learning import (
    Dataset,
    partition,
)
from coinflower.learning.data.own_loader import is_own_loader
from coinflower.learning.data.partitions import file_count
from coinflower.learning.data.persons import units_of
from coinflower.protocol.policy import Policy, Share

# A budget that nobody stated is what the noise costs, with room for the last digit only. It is
# never 0, which would allow nothing: rounds may cost nothing but δ.
_ROOM = 1e-9


def sizes_of(plan: Plan, data: Dataset) -> list[int]:
    """Return how much of the data each client has, in units of what is protected."""
    shares = partition(
        data,
        clients=file_count(data) if plan.clients is None else plan.clients,
        how=plan.how,
        seed=plan.insecure_seed or 0,
        alpha=plan.alpha,
        unit=plan.unit,
    )
    units = units_of(data.train, plan.unit, data.name)
    return [units.count(rows) for rows in shares]


def place_of(data: str) -> str:
    """Return where data is, from whatever folder; the names of data sets stay as they are."""
    return str(Path(data).absolute()) if Path(data).exists() else data


def write_clients(cluster: Cluster, plan: Plan, sizes: Sequence[int], parameters: int) -> None:
    """Write a policy and an empty ledger for every client."""
    for index, size in enumerate(sizes):
        share = Share(
            clients=len(sizes),
            index=index,
            how=plan.how,
            alpha=plan.alpha,
            seed=plan.insecure_seed or 0,
        )
        _write_client(cluster, plan, place_of(plan.data), share, size, parameters)


def _write_client(
    cluster: Cluster, plan: Plan, data: str, share: Share, size: int, parameters: int
) -> None:
    index = share.index
    terms = cluster.terms
    cost = terms.round_cost(size)
    budget = plan.epsilon
    if budget is None:  # nobody stated one: as much as the stated noise costs
        beside = [(each.round_cost(size), each.rounds) for each in cluster.queries]
        priced = [(each, rounds) for each, rounds in [*beside, (cost, terms.rounds)] if each]
        spent = epsilon_after(priced, plan.delta) if priced else 0.0
        budget = spent + _ROOM * max(spent, 1.0)
    seed, weights = plan.insecure_seed, plan.tuning.pretrained
    clients = cluster.folder / "clients"
    if cluster.notary is not None:
        cluster.notary.registry.allow(make_node_key(clients, f"client-{index}").path)
    policy = Policy.for_terms(
        terms,
        data_set=f"share-{index}",
        data=data,
        ledger=Path(cluster.ledger(index).name),
        declared_size=size,
        budget=Budget(epsilon=budget, delta=plan.delta),
        loaders=frozenset({data}) if is_own_loader(data) else frozenset(),
        pretrained=() if weights is None else (weights.absolute(),),
        most_parameters=parameters,
        device=plan.device,
        schema=None if plan.schema is None else Path("..") / cluster.schema.name,
        share=share,
        insecure_seed=None if seed is None else seed * 1000 + index,
        signing_key=None if cluster.notary is None else Path(f"client-{index}.key"),
        beside=cluster.queries,
    )
    path = clients / f"client-{index}.toml"
    path.write_text(policy.to_toml())
    Ledger.create(cluster.ledger(index), policy.data_set).close()
