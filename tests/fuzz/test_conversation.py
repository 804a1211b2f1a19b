"""Whole conversations: whatever a server says, in whatever order, a client keeps its promises."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, RecordDict
from flwr.app.message import make_message
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.app import ConfiguredOwners, make_app
from coinflower.protocol import messages
from coinflower.protocol.messages import FAILURE_REASON
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.protocol.terms import Terms
from tests.fuzz.fuzz_wire import metadata
from tests.support.builders import make_owner, make_terms

SAMPLES, CLASSES, ROUNDS = 6, 3, 5
LENGTH = 4 * CLASSES + CLASSES
modes = st.sampled_from(PRIVATE_MODES)
rounds = st.integers(-1, ROUNDS + 2)


class Conversation(RuleBasedStateMachine):
    """A server that asks anything; a client that may be restarted at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.owners = ConfiguredOwners()
        self.folder = tempfile.TemporaryDirectory()
        self.told: dict[tuple[str, int], bool] = {}
        self.answered: set[tuple[str, int]] = set()

    @initialize()
    def make_owner(self) -> None:
        folder = Path(self.folder.name)
        self.policy = make_owner(
            folder / "ward7.toml",
            SAMPLES,
            side=2,
            classes=CLASSES,
            modes=[str(mode) for mode in Mode if mode.is_private],
            models=["tests.fuzz.fuzz_wire:build_tiny_model"],
            largest_q=0.5,
            budget={"epsilon": 14.0, "delta": 1e-5},
        )
        self.ledger = self.policy.with_suffix(".db")

    @rule(mode=modes, noise=st.sampled_from([1.0, 1.5, 2.0]))
    def enrol(self, mode: Mode, noise: float) -> None:
        answer = self._ask("query.enrol", _terms(mode, noise_multiplier=noise))
        assert answer is not None
        if noise < 1.5:
            assert answer[messages.ENROLLED] is False

    @rule(mode=modes, first=rounds, count=st.integers(-1, 3))
    def invite(self, mode: Mode, first: int, count: int) -> None:
        terms = _terms(mode)
        answer = self._ask("query.invite", terms, round=first, count=count)
        if answer is not None:
            assert not terms.mode.answers_always
            for round_, coin in zip(range(first, first + count), answer["coins"], strict=True):
                assert self.told.setdefault((terms.ledger_key, round_), coin) == coin
                assert self._charges()[terms.ledger_key, round_] == coin

    @rule(mode=modes, round_=rounds, whole=st.booleans())
    def gradient(self, mode: Mode, round_: int, whole: bool) -> None:
        terms = _terms(mode)
        weights = bytes(4 * LENGTH if whole else 4 * LENGTH - 1)
        answer = self._ask("train.gradient", terms, round=round_, weights=weights)
        if answer is not None:
            key = terms.ledger_key, round_
            assert whole
            assert key not in self.answered, "a round was answered twice"
            assert self._charges()[key] or terms.mode.answers_always
            assert len(answer["sum"]) == 4 * LENGTH
            self.answered.add(key)

    @rule()
    def restart(self) -> None:
        self.owners.close()

    @invariant()
    def the_ledger_is_sound_and_within_its_budget(self) -> None:
        with Ledger.open(self.ledger, read_only=True) as ledger:
            assert ledger.reserved_epsilon(1e-5) <= 14.0
            claimed = {(e.experiment, e.round) for e in ledger.history() if e.kind == "answer"}
        assert self.answered <= claimed

    def teardown(self) -> None:
        self.owners.close()
        self.folder.cleanup()

    def _charges(self) -> dict[tuple[str, int], bool]:
        with Ledger.open(self.ledger, read_only=True) as ledger:
            entries = [entry for entry in ledger.history() if entry.kind == "charge"]
        return {(entry.experiment, entry.round): entry.coin for entry in entries}

    def _ask(self, kind: str, terms: Terms, **fields: Any) -> dict[str, Any] | None:
        record = ConfigRecord({messages.TERMS: terms.to_json(), **fields})
        message = make_message(metadata=metadata(kind), content=RecordDict({messages.ASK: record}))
        context = Context(
            run_id=1,
            node_id=7,
            node_config={"policy": str(self.policy)},
            state=RecordDict(),
            run_config={},
        )
        try:
            reply = make_app(self.owners)(message, context)
        except RuntimeError as error:
            if error.args != (FAILURE_REASON,):
                raise
            return None
        return dict(reply.content.config_records[messages.ANSWER])


def _terms(mode: Mode, **changes: Any) -> Terms:
    own = {"rounds": ROUNDS, "rounds_per_invitation": 2, "classes": CLASSES}
    model = "tests.fuzz.fuzz_wire:build_tiny_model"
    return make_terms(mode, **{**own, "model": model, **changes})


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
