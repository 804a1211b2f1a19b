"""The client's own data: all of a data set, or its share of a public one."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.learning import Dataset, Records, load_data, partition, with_test_part
from coinflower.learning.data.own_loader import is_own_loader
from coinflower.learning.data.persons import units_of
from coinflower.learning.data.rows import Rows
from coinflower.protocol.policy import Policy, Refusal, RefusedError, Share
from coinflower.protocol.terms import Terms
from coinflower.protocol.unit import Unit

logger = logging.getLogger("coinflower.data")


# Clients in one process share the public data that their shares are taken from.
@functools.lru_cache(maxsize=1)
def _load_once(data: str, schema: Path | None) -> Dataset:
    return with_test_part(load_data(data, schema=schema, numbers=None))


@functools.lru_cache(maxsize=1)
def _partition_once(data: str, schema: Path | None, share: Share, unit: Unit) -> list[Rows]:
    return partition(
        _load_once(data, schema),
        clients=share.clients,
        how=share.how,
        seed=share.seed,
        alpha=share.alpha,
        unit=unit,
    )


def load_local_data(policy: Policy) -> Records:
    """Return the records that the policy names; they never leave this client.

    Raises:
        ValueError: The data cannot be read, does not say whose its rows are although the policy
            protects persons, or has more of what it protects than declared.
    """
    return load_local_dataset(policy).train


def load_local_dataset(policy: Policy) -> Dataset:
    """Return these records together with what is known of the files that they come from.

    Raises:
        ValueError: As `load_local_data`.
    """
    if is_own_loader(policy.data) and policy.data not in policy.loaders:
        raise UserError(
            f"data = {policy.data!r} is code of your own, which runs only if the policy lists it: "
            f"add loaders = [{policy.data!r}]."
        )
    if policy.share is None:
        data = load_data(policy.data, schema=policy.schema, numbers=None)
    else:
        data = _load_once(policy.data, policy.schema)
        share = replace(policy.share, index=0)
        parts = _partition_once(policy.data, policy.schema, share, policy.unit)
        data = replace(data, train=data.train.take(parts[policy.share.index]), files=None)
    units = units_of(data.train, policy.unit, data.name)
    if len(units) > policy.declared_size:
        raise UserError(
            f"The data set {policy.data_set!r} has {len(units)} {policy.unit}s, more than the "
            f"declared {policy.declared_size}; the bound would not hold. Raise declared_size in "
            "the policy."
        )
    most = policy.most_rows_per_person
    if units.sizes.max(initial=0) > most:
        kept = units.first(most)
        logger.warning(
            "%d rows are left out: most_rows_per_person = %d.", len(data.train) - len(kept), most
        )
        data = replace(data, train=data.train.take(kept), files=None)
    return data


def require_schema(records: Records, terms: Terms) -> None:
    """Refuse terms whose models were made for tables that are read in another way.

    Raises:
        RefusedError: The schemas differ, or only one side has one.
    """
    if records.schema != terms.schema:
        ours, theirs = (_named(one) for one in (records.schema, terms.schema))
        raise RefusedError(
            Refusal.SCHEMA, f"this client reads its data by {ours}, but the terms name {theirs}"
        )


def _named(schema: str | None) -> str:
    return "no schema" if schema is None else f"the schema with hash {schema[:16]}…"
