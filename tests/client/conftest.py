"""A data owner on disk: thirty small images, a policy and a ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from coinflower.accounting.coin import CoinSource
from coinflower.accounting.ledger.entries import Entry
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.data import load_local_data
from coinflower.client.node.private_key import load_private_key
from coinflower.client.participant import Participant
from coinflower.learning import Randomness, SecureRandom, build_model, flatten_parameters
from coinflower.protocol.messages import vector_to_bytes
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from coinflower.protocol.terms import Terms
from tests.support import builders
from tests.support.builders import Coins, make_owner
from tests.support.participants import owners

SAMPLES = 30


@pytest.fixture(autouse=True)
def _no_participants() -> Iterator[None]:
    yield
    owners.close()


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The files of a data owner."""

    policy: Path

    @property
    def ledger(self) -> Path:
        return load_policy(self.policy).ledger

    def change(self, **changes: Any) -> None:
        """Edit the policy; None takes a key out."""
        import tomllib

        table = {**tomllib.loads(self.policy.read_text()), **changes}
        kept = {key: value for key, value in table.items() if value is not None}
        self.policy.write_text(tomli_w.dumps(kept))

    def open(self) -> Participant:
        """Open as a client does when it starts."""
        return Participant.open(self.policy)

    def open_with(
        self, *falls: bool, randomness: Randomness | None = None, ledger: Any = None
    ) -> Participant:
        """Open with coins that fall as told, and secure noise unless given."""
        policy = load_policy(self.policy)
        coins: CoinSource | None = Coins(*falls) if falls else None
        return Participant(
            policy,
            ledger or Ledger.open(policy.ledger, data_set=policy.data_set, coins=coins),
            load_local_data(policy),
            randomness or SecureRandom(),
            load_private_key(policy.signing_key) if policy.signing_key else None,
        )

    def entries(self, kind: str | None = None) -> list[Entry]:
        """What the ledger holds, read by somebody else."""
        with Ledger.open(self.ledger, read_only=True) as ledger:
            return [entry for entry in ledger.history() if kind in (None, entry.kind)]


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(policy=make_owner(tmp_path / "ward7.toml", SAMPLES))


@pytest.fixture(scope="session")
def make_terms() -> Callable[..., Terms]:
    """Return a function that makes terms, of mode ``untrusted`` unless told otherwise."""

    def make(mode: Mode = Mode.UNTRUSTED, **changes: Any) -> Terms:
        return builders.make_terms(mode, **changes)

    return make


@pytest.fixture(scope="session")
def weights() -> bytes:
    """The model of a round, as it travels."""
    return vector_to_bytes(flatten_parameters(build_model("digits", classes=10)).numpy())
