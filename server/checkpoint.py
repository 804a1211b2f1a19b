"""The server's state on disk: weights, momentum, round, and which round numbers are used up."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError

logger = logging.getLogger("coinflower.server")

Vector = npt.NDArray[np.float32]

_CHECKPOINT = "checkpoint.safetensors"
_USED_ROUNDS = "used-rounds.json"
_ECHOES = "echoes.json"

INSECURE = {"insecure": "true"}
"""The stamp on a run's files if anything in the run was ever seeded."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state after a round; round 0 is the beginning."""

    weights: Vector
    velocity: Vector
    round: int


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
        folder.mkdir(parents=True, exist_ok=True)
        self.insecure = insecure or self._is_stamped()

    def exists(self) -> bool:
        """Return whether an experiment has begun in this folder."""
        return (self._folder / _CHECKPOINT).exists() or (self._folder / _USED_ROUNDS).exists()

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the state after a round."""
        tensors: dict[str, npt.NDArray[Any]] = {
            "weights": checkpoint.weights,
            "velocity": checkpoint.velocity,
            "round": np.array([checkpoint.round], dtype=np.int64),
        }
        stamp = INSECURE if self.insecure else {}
        content = save_tensors(tensors, metadata={"terms": self._terms_hash, **stamp})
        write_atomically(self._folder / _CHECKPOINT, content)

    def load(self) -> Checkpoint | None:
        """Return the last state, or None if there is none yet.

        Raises:
            ValueError: The file is damaged or belongs to other terms.
        """
        path = self._folder / _CHECKPOINT
        if not path.exists():
            return None
        try:
            tensors: dict[str, Any] = load_tensors(path.read_bytes())
            with safe_open(path, "numpy") as file:
                terms = file.metadata()["terms"]
            weights, velocity = tensors["weights"], tensors["velocity"]
            (round_,) = tensors["round"]
            if weights.shape != velocity.shape or weights.ndim != 1:
                raise UserError(f"weights {weights.shape} and velocity {velocity.shape}")
            for vector in (weights, velocity):
                if vector.dtype != np.float32 or not np.isfinite(vector).all():
                    raise UserError("values that are not finite, or not in single precision")
            validation.require_count("round", round_, least=0)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"The checkpoint {path} is damaged: {error}.") from None
        self._require_own(terms)
        return Checkpoint(weights=weights, velocity=velocity, round=int(round_))

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

    def save_echoes(self, echoes: Mapping[str, bytes]) -> None:
        """Write the echoes of clients' ledgers."""
        content = {name: token.hex() for name, token in echoes.items()}
        write_atomically(self._folder / _ECHOES, json.dumps(content).encode())

    def load_echoes(self) -> dict[str, bytes]:
        """Return the echoes; without them clients are asked as if for the first time."""
        path = self._folder / _ECHOES
        try:
            content = json.loads(path.read_text())
            return {str(name): bytes.fromhex(token) for name, token in content.items()}
        except FileNotFoundError:
            return {}
        except (AttributeError, TypeError, ValueError, RecursionError):
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


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that after a crash it has either the old or the new content, complete."""
    draft = path.with_name(path.name + ".draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
