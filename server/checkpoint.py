"""A training's state on disk, and the server's: which round numbers are used up, and echoes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError
from coinflower.learning.optimizer import kept_memory

logger = logging.getLogger("coinflower.server")

Vector = npt.NDArray[np.float32]

_CHECKPOINT = "checkpoint.safetensors"
_USED_ROUNDS = "used-rounds.json"
_ECHOES = "echoes.json"
_NEWER_ECHOES = "echoes.newer"
# All echoes are written again once a tenth of them has changed since, so that what a round writes
# grows with those who answered in it, and not with those who are enrolled.
_REWRITE_SHARE = 0.1
_TOO_MANY = 1 << 62
_KINDS = {np.float32: "F32", np.int64: "I64"}

INSECURE = {"insecure": "true"}
"""The stamp on a run's files if anything in the run was ever seeded."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """The state after a round; round 0 is the beginning.

    Attributes:
        weights: The model's.
        memory: The optimizer's.
        round: How many rounds were played.
        notes: What else is kept with it, by name.
    """

    weights: Vector
    memory: Mapping[str, npt.NDArray[Any]]
    round: int
    notes: Mapping[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the state so that after a crash the file holds this state or the one before."""
        tensors: dict[str, npt.NDArray[Any]] = {
            **self.memory,
            "weights": self.weights,
            "round": np.array([self.round], dtype=np.int64),
        }
        write_atomically(path, _encoded(tensors, self.notes))

    @classmethod
    def read(
        cls, path: Path, *, round_in: Callable[[Mapping[str, str]], int] | None = None
    ) -> Checkpoint:
        """Return the state in a file.

        Args:
            path: The file.
            round_in: Finds the round in the notes if it is not beside the weights.

        Raises:
            ValueError: The file is damaged.
        """
        try:
            with safe_open(path, "numpy") as file:
                notes = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            weights = tensors.pop("weights")
            if round_in is not None and "round" not in tensors:
                round_ = round_in(notes)
            else:
                (round_,) = tensors.pop("round")
            if weights.ndim != 1 or weights.dtype != np.float32:
                raise UserError("weights is not a vector in single precision")
            validation.require_count("round", round_, least=0)
            memory = kept_memory(tensors, steps=int(round_), size=weights.size)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"The checkpoint {path} is damaged: {error}.") from None
        return cls(weights=weights, memory=memory, round=int(round_), notes=notes)


class CheckpointFolder:
    """Checkpoints of one experiment in a folder; every write is atomic and on disk.

    Args:
        folder: Where they are; created if missing.
        terms_hash: Hash of the terms; a checkpoint of other terms is refused.
        insecure: Whether anything in the run is seeded from now on.

    Attributes:
        insecure: Whether anything in the run is or ever was seeded; stamped on every checkpoint.
    """

    def __init__(self, folder: Path, terms_hash: str, *, insecure: bool = False) -> None:
        self._folder = folder
        self._terms_hash = terms_hash
        self._newer_echoes = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.insecure = insecure or self._is_stamped()

    def exists(self) -> bool:
        """Return whether an experiment has begun in this folder."""
        return (self._folder / _CHECKPOINT).exists() or (self._folder / _USED_ROUNDS).exists()

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the state after a round."""
        notes = {"terms": self._terms_hash, **(INSECURE if self.insecure else {})}
        replace(checkpoint, notes=notes).write(self._folder / _CHECKPOINT)

    def load(self) -> Checkpoint | None:
        """Return the last state, or None if there is none yet.

        Raises:
            ValueError: The file is damaged or belongs to other terms.
        """
        path = self._folder / _CHECKPOINT
        if not path.exists():
            return None
        checkpoint = Checkpoint.read(path)
        if not np.isfinite(checkpoint.weights).all():
            raise UserError(f"The checkpoint {path} is damaged: values that are not finite.")
        if "terms" not in checkpoint.notes:
            raise UserError(f"The checkpoint {path} is damaged: it does not name its terms.")
        self._require_own(checkpoint.notes["terms"])
        return checkpoint

    def use_rounds_through(self, round_: int) -> None:
        """Record, before any client hears of them, that rounds up to this one are used up."""
        content = json.dumps({"terms": self._terms_hash, "used_through": round_})
        write_atomically(self._folder / _USED_ROUNDS, content.encode())

    def used_through(self) -> int:
        """Return the last round number that any client may have heard of; 0 if none.

        Raises:
            ValueError: The file is damaged or belongs to other terms.
        """
        path = self._folder / _USED_ROUNDS
        if not path.exists():
            return 0
        try:
            content = json.loads(path.read_text())
            terms, used = content["terms"], content["used_through"]
            validation.require_count("used_through", used, least=0)
        except (KeyError, TypeError, ValueError, RecursionError):
            raise UserError(
                f"{path} is damaged; without it rounds might be played twice."
            ) from None
        self._require_own(terms)
        return int(used)

    def save_echoes(self, echoes: Mapping[str, bytes], changed: Collection[str]) -> None:
        """Write the echoes of clients' ledgers, of which some have changed since the last time."""
        self._newer_echoes += len(changed)
        newer = self._folder / _NEWER_ECHOES
        if self._newer_echoes < _REWRITE_SHARE * len(echoes):
            with newer.open("a") as file:
                file.writelines(f"{name} {echoes[name].hex()}\n" for name in changed)
                file.flush()
                os.fsync(file.fileno())
            return
        content = {name: token.hex() for name, token in echoes.items()}
        write_atomically(self._folder / _ECHOES, json.dumps(content).encode())
        # A crash before this line leaves echoes there that are no newer than these.
        newer.unlink(missing_ok=True)
        self._newer_echoes = 0

    def load_echoes(self) -> dict[str, bytes]:
        """Return the echoes; without them clients are asked as if for the first time."""
        path = self._folder / _ECHOES
        try:
            content = json.loads(path.read_text())
            echoes = {str(name): bytes.fromhex(token) for name, token in content.items()}
        except FileNotFoundError:
            return {}
        except (AttributeError, TypeError, ValueError, RecursionError):
            logger.warning("%s is damaged; ledgers that were set back may go unnoticed.", path)
            return {}
        return echoes | self._load_newer_echoes()

    def _load_newer_echoes(self) -> dict[str, bytes]:
        path = self._folder / _NEWER_ECHOES
        try:
            # A crash may have cut the last line short.
            lines, _, rest = path.read_text().rpartition("\n")
            pairs = [line.split(" ") for line in lines.splitlines()]
            self._newer_echoes = _TOO_MANY if rest else len(pairs)
            return {name: bytes.fromhex(token) for name, token in pairs}
        except FileNotFoundError:
            return {}
        except ValueError:
            self._newer_echoes = _TOO_MANY
            logger.warning("%s is damaged; ledgers that were set back may go unnoticed.", path)
            return {}

    def _is_stamped(self) -> bool:
        try:
            with safe_open(self._folder / _CHECKPOINT, "numpy") as file:
                return (file.metadata() or {}).items() >= INSECURE.items()
        except (OSError, SafetensorError):  # missing, or damaged, which `load` reports
            return False

    def _require_own(self, terms_hash: str) -> None:
        if terms_hash != self._terms_hash:
            raise UserError(
                f"{self._folder} holds an experiment with other terms; resume with the terms it "
                "began with, or choose another folder."
            )


def _encoded(
    tensors: Mapping[str, npt.NDArray[Any]], notes: Mapping[str, str]
) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file in pieces, each vector as it lies in memory."""
    head: dict[str, Any] = {"__metadata__": dict(notes)}
    stop = 0
    aligned = sorted(tensors.items(), key=lambda each: -each[1].itemsize)
    for name, values in aligned:
        start, stop = stop, stop + values.nbytes
        kind, shape = _KINDS[values.dtype.type], list(values.shape)
        head[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, values in aligned:
        yield np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data.cast("B")


def write_atomically(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Replace a file so that after a crash it has either the old or the new content, complete.

    Raises:
        OSError: It cannot be written; with its name.
    """
    draft = path.with_name(path.name + ".draft")
    try:
        with draft.open("wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:  # a full disk does not name the file
        with contextlib.suppress(OSError):
            draft.unlink()  # half a file on a disk that may be full
        raise OSError(error.errno, error.strerror, str(path)) from error
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
