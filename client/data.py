"""The client's own data: all of a data set, or its share of a public one."""

from __future__ import annotations

import functools
from dataclasses import replace

from coinflower.accounting.errors import UserError
from coinflower.learning import Dataset, Records, load_data, partition, with_test_part
from coinflower.learning.data.records import Rows
from coinflower.protocol.policy import Policy, Share


# Clients in one process share the public data that their shares are taken from.
@functools.lru_cache(maxsize=1)
def _load_once(data: str) -> Dataset:
    return with_test_part(load_data(data))


@functools.lru_cache(maxsize=1)
def _partition_once(data: str, share: Share) -> list[Rows]:
    return partition(
        _load_once(data), clients=share.clients, how=share.how, seed=share.seed, alpha=share.alpha
    )


def load_local_data(policy: Policy) -> Records:
    """Return the records that the policy names; they never leave this client.

    Raises:
        ValueError: The data cannot be read, or there are more rows than declared.
    """
    if policy.share is None:
        records = load_data(policy.data).train
    else:
        parts = _partition_once(policy.data, replace(policy.share, index=0))
        records = _load_once(policy.data).train.take(parts[policy.share.index])
    if len(records) > policy.declared_size:
        raise UserError(
            f"The data set {policy.data_set!r} has {len(records)} records, more than the declared "
            f"{policy.declared_size}; the bound would not hold. Raise declared_size in the policy."
        )
    return records
