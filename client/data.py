"""The client's own data: all of a data set, or its share of a public one."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coinflower.accounting.errors import UserError
from coinflower.learning import Dataset, load_data, partition
from coinflower.protocol.policy import Policy, Share


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalData:
    """Records that never leave this client."""

    inputs: npt.NDArray[Any]
    targets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.targets)


# Clients in one process share the public data that their shares are taken from.
@functools.lru_cache(maxsize=1)
def _load_once(data: str) -> Dataset:
    return load_data(data)


@functools.lru_cache(maxsize=1)
def _partition_once(data: str, share: Share) -> list[npt.NDArray[np.int64]]:
    return partition(
        _load_once(data), clients=share.clients, how=share.how, seed=share.seed, alpha=share.alpha
    )


def load_local_data(policy: Policy) -> LocalData:
    """Return the rows that the policy names.

    Raises:
        ValueError: The data cannot be read, or there are more rows than declared.
    """
    data = _load_once(policy.data)
    rows = np.arange(len(data.train_targets))
    if policy.share is not None:
        parts = _partition_once(policy.data, replace(policy.share, index=0))
        rows = parts[policy.share.index]
    if len(rows) > policy.declared_size:
        raise UserError(
            f"The data set {policy.data_set!r} has {len(rows)} records, more than the declared "
            f"{policy.declared_size}; the bound would not hold. Raise declared_size in the policy."
        )
    return LocalData(inputs=data.train_inputs[rows], targets=data.train_targets[rows])
