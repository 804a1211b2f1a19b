"""Clipped gradient sums of large batches, on several threads."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coinflower.learning import Clipping, Groups, Records, Task, clipped_gradient_sum, loss_of
from coinflower.learning.gradients.clipping import slices_of_whole_groups
from coinflower.learning.noise import drawn_ahead
from coinflower.learning.randomness import NoiseSource

Rows = npt.NDArray[np.int64]
Vector = npt.NDArray[np.float32]
Draws = npt.NDArray[np.float64]

# Threads hand Python to each other at every step of a part, so parts are as large as eight threads
# allow, within what one chunk or two hold.
_FEWEST, _MOST = 256, 512  # records of a part
_THREADS = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Records of one iteration.

    Attributes:
        rows: Which of the records.
        owners: The client of each.
        persons: Whose each is, if persons are clipped; nobody is at two clients.
    """

    rows: Rows
    owners: Rows
    persons: Rows | None = None

    def __getitem__(self, some: slice | Rows | npt.NDArray[np.bool_]) -> Batch:
        persons = None if self.persons is None else self.persons[some]
        return Batch(rows=self.rows[some], owners=self.owners[some], persons=persons)


class BatchSums:
    """Adds up a batch's clipped gradients, part by part.

    Formal guarantees: the parts depend on the batch alone and their sums are added in their order,
    so the result is the same, bit for bit, on any number of threads, as long as torch itself takes
    one thread for each of its operations.

    Args:
        model: The model. Its weights are those of every sum, so they must not change meanwhile.
        records: Where the rows are.
        task: What is learned; rows whose targets do not fit it count as zero.
        clip_norm: Bound on each record's or person's gradient.
        clipping: How it is clipped.
        cap_norm: Bound on each client's sum; infinite for none.
        threads: How many compute at a time.
    """

    def __init__(
        self,
        model: nn.Module,
        records: Records,
        task: Task,
        *,
        clip_norm: float,
        clipping: Clipping = "flat",
        cap_norm: float = math.inf,
        threads: int = 1,
    ) -> None:
        self._records, self._task = records, task
        self._clip_norm, self._cap_norm = clip_norm, cap_norm
        self._clipping: Clipping = clipping
        # A sum hangs hooks on its model, so no two threads may work with the same one.
        self._models: SimpleQueue[nn.Module] = SimpleQueue()
        for twin in (model, *(_twin(model) for _ in range(threads - 1))):
            self._models.put(twin)
        self._pool = None
        if threads > 1:
            self._pool = ThreadPoolExecutor(
                threads, initializer=torch.set_num_threads, initargs=(1,)
            )

    def drawn_meanwhile(self, source: NoiseSource, size: int, std: float) -> NoiseSource:
        """Return a source of the noise that one of the threads begins to draw now."""
        if self._pool is None:
            return source
        return _Drawn(self._pool.submit(drawn_ahead, size, std, source))

    def sum(self, batch: Batch) -> Vector:
        """Return the sum over a batch, whose order does not matter."""
        together = self._together(batch)
        if together is not None:
            batch = batch[np.argsort(together, kind="stable")]
        total: Vector = functools.reduce(torch.Tensor.add_, self._sums(batch)).numpy()
        return total

    def _together(self, batch: Batch) -> Rows | None:
        """Return what no part may cut in two: a client under a cap, or else a person."""
        return batch.owners if math.isfinite(self._cap_norm) else batch.persons

    def _sums(self, batch: Batch) -> Iterator[torch.Tensor]:
        parts = [batch[part] for part in self._parts(batch)]
        if self._pool is None or len(parts) == 1:
            yield from map(self._sum_of_part, parts)
            return
        begun: list[Future[torch.Tensor]] = [
            self._pool.submit(self._sum_of_part, part) for part in parts
        ]
        for each in begun:
            yield each.result()

    def _parts(self, batch: Batch) -> list[slice]:
        """Cut the rows; an even number of parts keeps two and four threads busy to the end."""
        most = min(max(_FEWEST, len(batch.rows) // _THREADS), _MOST)
        together = self._together(batch)
        if together is not None and len(together):
            _, sizes = np.unique(together, return_counts=True)
            return list(slices_of_whole_groups(sizes, most))
        count = math.ceil(len(batch.rows) / most)
        count = max(1, count + (count > 1) * (count % 2))
        edges = [len(batch.rows) * i // count for i in range(count + 1)]
        return [slice(start, stop) for start, stop in itertools.pairwise(edges)]

    def _sum_of_part(self, batch: Batch) -> torch.Tensor:
        taken = self._task.take(self._records.targets[batch.rows])
        batch = batch[taken.fit]
        inputs, _ = self._records.batch(batch.rows)
        weights = self._records.weights
        targets, loss = loss_of(
            self._task,
            torch.from_numpy(taken.values[taken.fit]),
            None if weights is None else weights[batch.rows],
        )
        groups = None
        if math.isfinite(self._cap_norm):
            groups = Groups(of=torch.from_numpy(batch.owners), largest_norm=self._cap_norm)
        model = self._models.get()
        try:
            return clipped_gradient_sum(
                model,
                inputs,
                targets,
                self._clip_norm,
                clipping=self._clipping,
                loss=loss,
                persons=None if batch.persons is None else torch.from_numpy(batch.persons),
                groups=groups,
            )
        finally:
            self._models.put(model)


class _Drawn:
    """Noise that a thread draws, each block of it to be used once."""

    def __init__(self, draws: Future[list[Draws]]) -> None:
        self._draws = draws

    def normal(self, size: int, std: float) -> Draws:  # noqa: ARG002 - it was asked for before
        return self._draws.result().pop(0)


def _twin(model: nn.Module) -> nn.Module:
    """Return a copy of a model with the very same weights: whoever loads the one loads both."""
    twin = copy.deepcopy(model)
    for ours, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        ours.data = theirs.data
    return twin
