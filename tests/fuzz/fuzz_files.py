"""Files that a crash, a bad disk or somebody else changed: ledgers, checkpoints, keys, records."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round
from coinflower.client.node.private_key import load_private_key
from coinflower.deploy.keys.key_files import load_public_key
from coinflower.deploy.machines.notary_folder import NotaryFolder
from coinflower.notary.record import Record
from coinflower.protocol.notary_key import notary_key
from coinflower.protocol.objections import ObjectionError
from coinflower.server.checkpoint import Checkpoint, CheckpointFolder

ROUND = Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
HASH = "4" * 64


class Files:
    """The first byte chooses the file; the rest are changes to a sound one, or all of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sound = folder / "sound"
        self._sound.mkdir()
        self._work = folder / "work"
        ledger = self._sound / "ledger.db"
        with Ledger.create(ledger, "ward 7") as book:
            book.reserve("trial", ROUND, 100, Budget(epsilon=1e6, delta=1e-5))
            book.flip_all("trial", range(1, 31))
            for round_ in range(1, 20):
                book.claim_answer("trial", round_)
            book.reserve("other", ROUND, 5, Budget(epsilon=1e6, delta=1e-5))
            book.release("other")
            self._history = list(book.history())
        self._coins = {e.round: e.coin for e in self._history if e.kind == "charge"}
        self._ledger = ledger.read_bytes()
        saved = CheckpointFolder(self._sound, HASH)
        vector = np.arange(8, dtype=np.float32)
        saved.save(
            Checkpoint(
                weights=vector, memory={"momentum_buffer": vector, "steps": np.array([3])}, round=3
            )
        )
        saved.use_rounds_through(4)
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        notary = NotaryFolder(self._sound / "notary")
        notary.create()
        self._notary = notary.public_key
        record = notary.open_record()
        for round_ in (1, 2):
            _note_opening(record, round_)
        record.close()
        self._record = (notary.path / "record.db").read_bytes()
        self._readers: list[Callable[[bytes], None]] = [
            self._open_ledger,
            self._load_checkpoint,
            self._load_used_rounds,
            self._load_keys,
            self._open_record,
            self._load_notary,
        ]
        self.seeds = [
            bytes([0, 0, 0, 100, 1, 0xFF]),
            bytes([0, 0, 5, 0, 2, 1, 2, 0, 10, 7, 4, *b"coin"]),
            bytes([0, 0, 40, 0, 0]),
            b"\1" + (self._sound / "checkpoint.safetensors").read_bytes(),
            b"\2" + (self._sound / "used-rounds.json").read_bytes(),
            b"\3" + private,
            b"\3" + public,
            bytes([4, 0, 0, 100, 1, 0xFF]),
            bytes([4, 0, 64, 0, 2, 1, 2]),
            bytes([4, 0, 48, 0, 0]),
            b"\5" + notary.public_file.read_bytes(),
            b"\5" + (notary.path / "notary.key").read_bytes(),
        ]

    def __call__(self, data: bytes) -> None:
        """Read a changed file; a sound value or a declared error, nothing else."""
        if data:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work.mkdir()
            self._readers[data[0] % len(self._readers)](data[1:])

    def _open_ledger(self, edits: bytes) -> None:
        content = edited(self._ledger, edits)
        path = self._work / "ledger.db"
        path.write_bytes(content)
        try:
            ledger = Ledger.open(path)
        except LedgerError:
            assert path.read_bytes() == content, "a refused ledger was written to"
            return
        with ledger:
            assert list(ledger.history()) == self._history, "other entries than were written"
            told = ledger.flip_all("trial", list(self._coins))
            assert told == list(self._coins.values()), "a coin was flipped twice"
            assert not ledger.claim_answer("trial", 1), "a round was answered twice"
            ledger.flip("trial", 31)
            assert ledger.verify().entries == len(self._history) + 1

    def _load_checkpoint(self, content: bytes) -> None:
        (self._work / "checkpoint.safetensors").write_bytes(content)
        try:
            state = CheckpointFolder(self._work, HASH).load()
        except ValueError:
            return
        assert state is not None
        assert state.round >= 0
        assert state.weights.dtype == np.float32
        for vector in (state.weights, *state.memory.values()):
            assert np.isfinite(vector).all()

    def _load_used_rounds(self, content: bytes) -> None:
        (self._work / "used-rounds.json").write_bytes(content)
        try:
            used = CheckpointFolder(self._work, HASH).used_through()
        except ValueError:
            return
        assert used >= 0

    def _load_keys(self, content: bytes) -> None:
        path = self._work / "key"
        path.write_bytes(content)
        for load in (load_private_key, load_public_key):
            try:
                load(path)
            except ValueError:
                continue

    def _open_record(self, edits: bytes) -> None:
        path = self._work / "record.db"
        path.write_bytes(edited(self._record, edits))
        try:
            record = Record.open(path, self._notary)
        except ValueError:
            return
        try:
            _note_opening(record, 3)
            assert record.opened()[-1].last_round == 3
            _note_opening(record, 3)
        except ObjectionError:
            return
        finally:
            record.close()
        raise AssertionError("a round was opened twice")

    def _load_notary(self, content: bytes) -> None:
        folder = NotaryFolder(self._work)
        for name in ("notary.pub", "notary.key"):
            (self._work / name).write_bytes(content)
            (self._work / name).chmod(0o600)
        with contextlib.suppress(ValueError):
            assert len(notary_key("notary.pub", self._work)) == 64
        with contextlib.suppress(ValueError):
            folder.load_key()


def _note_opening(record: Record, round_: int) -> None:
    record.note_opening(
        terms="ab" * 32,
        experiment="trial",
        round_=round_,
        seeds=[bytes([round_, each]) * 16 for each in range(3)],
        tokens={bytes([each]) * 32: bytes([each]) * 84 for each in range(3)},
    )


def edited(content: bytes, edits: bytes) -> bytes:
    """Apply (three bytes of offset, length, bytes)*; length 0 cuts the file off there."""
    changed = bytearray(content)
    while len(edits) >= 4:
        offset = int.from_bytes(edits[:3], "big") % len(content)
        length = edits[3]
        if length == 0:
            return bytes(changed[:offset])
        changed[offset : offset + length] = edits[4 : 4 + length]
        edits = edits[4 + length :]
    return bytes(changed)
