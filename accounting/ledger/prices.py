"""What everything in a ledger costs together, without adding up all of it each time.

Rounds that stay in a ledger are folded into a `Past`, a few experiments at a time, and kept in a
file beside the ledger. A `Past` says which rounds it stands for and is used only where all of them
are among those asked about, so none can be out of date. The file is derived, and may be deleted at
any time: it is sealed with the ledger's salt and with the code that computed it, and not believed
if either is another.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import io
import json
import math
import os
import secrets
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.composition.compose import delta_after, epsilon_after, fold, merged
from coinflower.accounting.composition.past import Past
from coinflower.accounting.ledger.entries import Budget, Tally, terms_from_json, terms_to_json

FEW = 4
"""So many different terms are added up each time; more are folded."""
KEPT_BACK = 0.01
"""Share of the budget that is kept back once anything is folded: the same rounds may come out
more expensive when they are folded in another order, and must still fit."""
_MOST_KEPT = 8
_ACCOUNTING = Path(__file__).parents[1]
_LIBRARIES = ("numpy", "scipy", "dp-accounting")
_SEAL_BYTES = 32

Counts = Mapping[Analysis, int]
Rounds = Sequence[tuple[Analysis, int]]


class Prices:
    """The prices of one ledger.

    Args:
        path: Where they are kept between starts; nowhere if left out.
        salt: Of the ledger.
        writable: Whether to write the file.
    """

    def __init__(self, path: Path | None = None, salt: str = "", *, writable: bool = False) -> None:
        self._path = path
        self._seal_key = hashlib.sha256(f"{_code()} {salt}".encode()).digest()
        self._writable = writable
        self._kept: OrderedDict[tuple[int, str], Past] = OrderedDict()
        self._read_at = 0
        self._lock = threading.Lock()

    def spent(self, tallies: Sequence[Tally], delta: float) -> float:
        """Return ε of every round that was charged."""
        return self._epsilon(_settled(tallies), [], _charged_of_open(tallies), delta)

    def total_variation(self, tallies: Sequence[Tally], delta: float) -> float:
        """Return δ at ε = 0 of every round that was charged; ``delta`` is that of other figures."""
        rest, past = self._parts(_settled(tallies), [], _charged_of_open(tallies), delta)
        return delta_after(rest, 0.0, past=past)

    def reserved_epsilon(
        self, tallies: Sequence[Tally], delta: float, *, more: Rounds = ()
    ) -> float:
        """Return ε of every round that was charged or reserved, and of ``more``."""
        open_ = [
            (tally.terms, tally.reserved_rounds) for tally in tallies if not _is_settled(tally)
        ]
        return self._epsilon(_settled(tallies), open_, more, delta)

    def after(self, rounds: Rounds, delta: float) -> float:
        """Return ε of these rounds."""
        return self._epsilon(rounds, [], [], delta)

    def would_exceed(
        self, tallies: Sequence[Tally], terms: Analysis, rounds: int, budget: Budget
    ) -> bool:
        """Return whether ``rounds`` more of ``terms`` would take a ledger beyond its budget."""
        if budget.epsilon == 0:
            return rounds > 0
        price = self.reserved_epsilon(tallies, budget.delta, more=[(terms, rounds)])
        few = len({tally.terms for tally in tallies}) < FEW  # so few that nothing is ever folded
        return not price * (1 if few else 1 + KEPT_BACK) <= budget.epsilon

    def _epsilon(self, settled: Rounds, open_: Rounds, more: Rounds, delta: float) -> float:
        rest, past = self._parts(settled, open_, more, delta)
        return epsilon_after(rest, delta, past=past)

    def _parts(
        self, settled: Rounds, open_: Rounds, more: Rounds, delta: float
    ) -> tuple[Rounds, Past | None]:
        """Return the rounds that are not folded, and what the others are folded into."""
        self._read()
        counts = dict(merged([*settled, *open_, *more]))
        past: Past | None = None
        for kind, rounds in (("settled", settled), ("reserved", [*settled, *open_])):
            past = self._folded((math.floor(math.log10(delta)), kind), rounds, past, counts)
        return list((past.rest_of(counts) if past else counts).items()), past

    def _folded(
        self, key: tuple[int, str], rounds: Rounds, base: Past | None, all_counts: Counts
    ) -> Past | None:
        """Return a `Past` that stands for ``rounds`` but a few, and for none but all that count."""
        candidates = [base, self._kept.get(key)]
        usable = [past for past in candidates if past is not None and past.is_within(all_counts)]
        past = max(usable, key=lambda each: sum(each.counts.values()), default=None)
        counts = dict(merged(rounds))
        rest = list((past.rest_of(counts) if past else counts).items())
        while len(rest) > FEW:
            past, rest = fold(rest[:FEW], 10.0 ** key[0], past=past), rest[FEW:]
            self._keep(key, past)
        return past

    def _keep(self, key: tuple[int, str], past: Past) -> None:
        with self._lock:
            self._kept[key] = past
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            if self._writable and self._path is not None:
                content = _packed(self._kept)
                with contextlib.suppress(OSError):  # it saves time, no more
                    _replace(self._path, self._seal(content) + content)
                    self._read_at = self._path.stat().st_mtime_ns

    def _read(self) -> None:
        """Take over what another process, or an earlier start, has folded."""
        if self._path is None:
            return
        with self._lock, contextlib.suppress(OSError):
            written_at = self._path.stat().st_mtime_ns
            if written_at == self._read_at:
                return
            self._read_at = written_at
            content = self._path.read_bytes()
            seal, content = content[:_SEAL_BYTES], content[_SEAL_BYTES:]
            if hmac.compare_digest(seal, self._seal(content)):
                self._kept.update(_unpacked(content))

    def _seal(self, content: bytes) -> bytes:
        return hmac.digest(self._seal_key, content, "sha256")


def _is_settled(tally: Tally) -> bool:
    """Return whether all that was reserved is charged: such rounds never leave the ledger."""
    return tally.remaining_rounds == 0


def _settled(tallies: Sequence[Tally]) -> Rounds:
    return [(tally.terms, tally.charged) for tally in tallies if _is_settled(tally)]


def _charged_of_open(tallies: Sequence[Tally]) -> Rounds:
    return [(tally.terms, tally.charged) for tally in tallies if not _is_settled(tally)]


@functools.cache
def _code(accounting: Path = _ACCOUNTING) -> str:
    """Return a hash of the code that prices: what other code has computed is not believed."""
    versions = [f"{name} {metadata.version(name)}" for name in _LIBRARIES]
    digest = hashlib.sha256(", ".join(versions).encode())
    for path in sorted(accounting.rglob("*.py")):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _packed(kept: Mapping[tuple[int, str], Past]) -> bytes:
    about = [
        [*key, [[terms_to_json(scheme), count] for scheme, count in past.counts.items()]]
        for key, past in kept.items()
    ]
    arrays = {
        f"{name}{index}": getattr(past, name)
        for index, past in enumerate(kept.values())
        for name in ("epsilon", "remove", "add")
    }
    buffer = io.BytesIO()
    np.savez(buffer, about=np.array(json.dumps(about)), **arrays)
    return buffer.getvalue()


def _unpacked(content: bytes) -> dict[tuple[int, str], Past]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {
                (decade, kind): Past(
                    counts={terms_from_json(terms): count for terms, count in counts},
                    epsilon=archive[f"epsilon{index}"],
                    remove=archive[f"remove{index}"],
                    add=archive[f"add{index}"],
                )
                for index, (decade, kind, counts) in enumerate(json.loads(str(archive["about"])))
            }
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile):
        return {}


def _replace(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads; all of it appears, or nothing."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(handle, "wb") as file:
            file.write(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
