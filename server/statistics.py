"""Statistics of clients' tables: rounds without a model, and what their noisy sums say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coinflower.accounting.errors import UserError
from coinflower.learning.data.tables.schema import load_schema
from coinflower.learning.queries.statistics import Statistics
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import CheckpointFolder, write_atomically
from coinflower.server.journal import RoundReport
from coinflower.server.rounds import Rounds

STATISTICS = "statistics.json"
# A question about data alone has no model, and every question carries one: this.
_NO_MODEL = np.zeros(1, np.float32)


def statistics_of(terms: Terms, schema: Path | None) -> Statistics:
    """Return what is asked, once terms and schema go together.

    Raises:
        UserError: There is no schema, or another one, or it has no such column.
    """
    assert terms.query is not None
    if schema is None:
        raise UserError("Statistics need the schema of the tables: name it in the settings.")
    found = load_schema(schema)
    if found.hash != terms.schema:
        raise UserError(
            f'The terms name another schema than {schema}: let them have schema = "{found.hash}", '
            "its hash."
        )
    return Statistics(terms.query, found)


class Tally:
    """The noisy sums of all rounds so far, in a file that survives a restart.

    Args:
        folder: Where the file is.
        terms: The public terms.
        statistics: What is asked.
    """

    def __init__(self, folder: Path, terms: Terms, statistics: Statistics) -> None:
        self._path = folder / STATISTICS
        self._terms = terms
        self._statistics = statistics
        self._total = np.zeros(statistics.length)
        self._variance = 0.0
        self._rounds = 0
        if self._path.exists():
            kept = json.loads(self._path.read_text())
            if kept["terms"] != terms.hash:
                raise UserError(f"{self._path} is of other terms; choose another folder.")
            self._total = np.array(kept["sums"])
            self._variance, self._rounds = kept["noise_std"] ** 2, kept["rounds"]

    def add(self, total: Any, answered: int) -> None:
        """Add the noisy sum of a round, and write what all of them say."""
        terms = self._terms
        noises = terms.mode.noises_in_sum(
            asked=answered, took_part=answered, honest=terms.honest_shares
        )
        self._total += total
        self._variance += terms.noise_std**2 * noises
        self._rounds += 1
        write_atomically(self._path, json.dumps(self.figures(), indent=1).encode() + b"\n")

    def figures(self) -> dict[str, Any]:
        """Return what the sums say, and the sums themselves."""
        terms, noise_std = self._terms, math.sqrt(self._variance)
        return {
            "terms": terms.hash,
            "unit": str(terms.unit),
            "rounds": self._rounds,
            "columns": self._statistics.read(
                self._total,
                clip_norm=terms.clip_norm,
                noise_std=noise_std,
                sampled=1 / (terms.p * terms.q * max(1, self._rounds)),
            ),
            "noise_std": noise_std,
            "sums": self._total.tolist(),
        }


def ask_statistics(
    rounds: Rounds,
    terms: Terms,
    statistics: Statistics,
    checkpoints: CheckpointFolder,
    folder: Path,
    on_round: Callable[[RoundReport], None],
) -> None:
    """Play all rounds that are left, and write what they say into the folder.

    Raises:
        TooFewClientsError: Too few clients for longer than the patience.
        NotaryError: A notary will not open the sums.
    """
    tally = Tally(folder, terms, statistics)
    first = checkpoints.used_through() + 1
    if first <= terms.rounds:
        rounds.wait(gather=True)
    for round_ in range(first, terms.rounds + 1):
        rounds.wait()
        played = rounds.play(round_, _NO_MODEL, length=statistics.length)
        if played.total is not None:
            tally.add(played.total, played.report.answered)
        on_round(played.report)
