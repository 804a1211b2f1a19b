"""Clients that stay away for a reason that may pass are asked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import coinflower.server.clients.roster
from coinflower.accounting.ledger import stops as ledger_stops
from coinflower.protocol.policy import Refusal, load_policy


def kind_of(message: Message) -> str:
    return message.metadata.message_type.rpartition(".")[2]


def test_a_client_that_is_paused_at_the_start_joins_once_it_resumes(
    federation: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(coinflower.server.clients.roster, "_ASK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(coinflower.server.clients.roster, "_LOOK_SECONDS", 0.05)
    run = federation(sizes=(12,), rounds=3)
    (policy,) = run.grid.policies.values()
    ledger = load_policy(policy).ledger
    ledger_stops.pause(ledger)

    def resume_when_asked_for_the_third_time(message: Message) -> None:
        if kind_of(message) == "enrol" and len(run.grid.sent("enrol")) == 2:
            ledger_stops.resume(ledger)

    run.grid.before_push = resume_when_asked_for_the_third_time
    run.run()
    assert caplog.text.count(f"Client 1000 stays away: {Refusal.PAUSED.value}") == 1
    assert [entry.round for entry in run.entries(1000, "charge")] == [1, 2, 3]


def test_a_client_whose_ledger_is_out_of_order_joins_once_it_is_in_order(
    federation: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coinflower.server.clients.roster, "_ASK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(coinflower.server.clients.roster, "_LOOK_SECONDS", 0.05)
    run = federation(sizes=(12,), rounds=3)
    (policy,) = run.grid.policies.values()
    ledger = load_policy(policy).ledger
    aside = ledger.rename(ledger.with_suffix(".aside"))

    def restore_when_asked_for_the_third_time(message: Message) -> None:
        if kind_of(message) == "enrol" and len(run.grid.sent("enrol")) == 2:
            aside.rename(ledger)

    run.grid.before_push = restore_when_asked_for_the_third_time
    run.run()
    assert [entry.round for entry in run.entries(1000, "charge")] == [1, 2, 3]


def test_two_questions_of_the_same_content_have_no_hash_in_common(
    federation: Callable[..., Any],
) -> None:
    terms = federation().terms
    first, second = (
        coinflower.server.clients.roster.question(terms, {"round": 1}) for _ in range(2)
    )
    assert not get_all_nested_objects(first).keys() & get_all_nested_objects(second).keys()
