"""What people and servers write as text: terms, policies, settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from coinflower.protocol.terms import Terms
from coinflower.server.settings import load_settings
from tests.support.builders import policy_fields, terms_fields

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
            + [json.dumps(free)],
            [tomli_w.dumps(POLICY)],
            [tomli_w.dumps(SETTINGS)],
        ]
        self.seeds = [
            bytes([reader]) + text.encode()
            for reader, texts in enumerate(written)
            for text in texts
        ]
        self.seeds += [b"\1a = " + b"[" * 2000, b"\2a = " + b"9" * 5000, b"\0" + b"[" * 2000]
        self._readers: list[Callable[[bytes], None]] = [self._terms, self._policy, self._settings]

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

    def _settings(self, content: bytes) -> None:
        self._file.write_bytes(content)
        try:
            settings = load_settings(self._file)
        except ValueError:
            return
        assert settings.least_clients >= 1
