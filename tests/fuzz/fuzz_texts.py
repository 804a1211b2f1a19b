"""What people and servers write as text: terms, policies, settings, schemas and tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from coinflower.learning import load_data
from coinflower.learning.data.tables.schema import load_schema
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from coinflower.protocol.terms import Terms
from coinflower.server.settings import load_settings
from tests.support import tables
from tests.support.builders import make_terms, policy_fields, terms_fields

TERMS = terms_fields(Mode.UNTRUSTED) | {"mode": "untrusted"}
POLICY = policy_fields(
    declared_size=30,
    largest_cap=2.0,
    insecure_seed=3,
    models=["digits", "own.module:build"],
    share={"clients": 4, "index": 2, "how": "equal", "seed": 1, "alpha": 0.5},
)
CAPS: list[dict[str, Any]] = [{}, {"cap": 2.0}]
SETTINGS: dict[str, Any] = {"terms": TERMS, "state": "server", "test_data": "digits"}


class Texts:
    """The first byte chooses who reads the rest."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "file.toml"
        free = {**TERMS, "mode": "none", "clip_norm": "infinite", "noise_multiplier": 0}
        written = [
            [json.dumps({**TERMS, "mode": str(mode), **cap}) for mode in Mode for cap in CAPS]
            + [json.dumps(free), make_terms(Mode.MASKED).to_json()],
            [tomli_w.dumps(POLICY)],
            [tomli_w.dumps(SETTINGS)],
            [tables.SCHEMA],
            ["\n".join([tables.HEADER, *tables.ward_rows(9), "x,1e9,,no", ",nan,f", ""])],
        ]
        self.seeds = [
            bytes([reader]) + text.encode()
            for reader, texts in enumerate(written)
            for text in texts
        ]
        self.seeds += [b"\1a = " + b"[" * 2000, b"\2a = " + b"9" * 5000, b"\0" + b"[" * 2000]
        self._readers: list[Callable[[bytes], None]] = [
            self._terms,
            self._policy,
            self._settings,
            self._schema,
            self._table,
        ]
        self._ward = folder / "ward.toml"
        tables.write_schema(self._ward)

    def __call__(self, data: bytes) -> None:
        """Read, and accept nothing but a sound value or a sentence about what is wrong."""
        if data:
            self._readers[data[0] % len(self._readers)](data[1:])

    def _terms(self, content: bytes) -> None:
        try:
            terms = Terms.from_json(content.decode("utf-8", "surrogatepass"))
        except ValueError:  # what cannot be decoded is a ValueError as well
            return
        again = Terms.from_json(terms.to_json())
        assert again == terms
        assert again.hash == terms.hash

    def _policy(self, content: bytes) -> None:
        self._file.write_bytes(content)
        try:
            policy = load_policy(self._file)
        except ValueError:
            return
        assert policy.declared_size >= 1
        assert policy.budget.epsilon >= 0
        assert policy.modes <= frozenset(Mode)

    def _schema(self, content: bytes) -> None:
        self._file.write_bytes(content)
        try:
            schema = load_schema(self._file)
        except ValueError:
            return
        assert len(schema.hash) == 64
        assert len(set(schema.needed)) == len(schema.needed)
        assert schema.features

    def _table(self, content: bytes) -> None:
        file = self._file.with_suffix(".csv")
        file.write_bytes(content)
        try:
            records = load_data(str(file), schema=self._ward).train
        except ValueError:
            return
        assert np.abs(records.inputs).max() <= 1
        assert set(records.targets) <= {0, 1}
        assert records.persons is not None

    def _settings(self, content: bytes) -> None:
        self._file.write_bytes(content)
        try:
            settings = load_settings(self._file)
        except ValueError:
            return
        assert settings.least_clients >= 1
