"""Pausing, resuming and leaving: what a client does once its owner has said so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coinflower.accounting.ledger import stops as ledger_stops
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.participant import Participant
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal, RefusedError
from coinflower.protocol.terms import Terms
from tests.support.participants import answer

Make = Callable[..., Terms]


def refusal_of(action: Callable[[], object]) -> Refusal:
    with pytest.raises(RefusedError) as caught:
        action()
    return caught.value.refusal


def enrolled(owner: Any, terms: Terms, *falls: bool) -> Participant:
    participant: Participant = owner.open_with(*falls) if falls else owner.open()
    participant.enrol(terms)
    return participant


@pytest.mark.parametrize("mode", list(Mode))
def test_a_paused_client_refuses_everything_before_a_coin(
    owner: Any, make_terms: Make, weights: bytes, mode: Mode
) -> None:
    terms = make_terms(mode)
    participant = enrolled(owner, terms)
    before = owner.entries()
    participant.pause()
    assert refusal_of(lambda: participant.enrol(terms)) is Refusal.PAUSED
    assert refusal_of(lambda: answer(participant, terms, 1, weights)) is Refusal.PAUSED
    if not mode.answers_always:
        assert refusal_of(lambda: participant.flip(terms, [1, 2])) is Refusal.PAUSED
    assert owner.entries() == before


def test_a_pause_survives_a_restart_and_says_so(
    owner: Any, make_terms: Make, caplog: pytest.LogCaptureFixture
) -> None:
    enrolled(owner, make_terms()).pause()
    again = owner.open()
    assert "PAUSED since" in caplog.text
    assert refusal_of(lambda: again.enrol(make_terms())) is Refusal.PAUSED
    again.resume()
    assert owner.open().enrol(make_terms()) == 30


def test_coins_that_a_server_knows_stay_paid_and_unanswered_until_resumed(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms(Mode.TRUSTED)
    participant = enrolled(owner, terms, True)
    assert participant.flip(terms, [1, 2, 3, 4]) == [True] * 4
    participant.gradient_sum(terms, 1, weights)
    participant.pause()
    assert refusal_of(lambda: participant.gradient_sum(terms, 2, weights)) is Refusal.PAUSED
    assert refusal_of(lambda: participant.flip(terms, [1, 2, 3, 4])) is Refusal.PAUSED
    assert len(owner.entries("charge")) == 4
    assert [entry.round for entry in owner.entries("answer")] == [1]
    participant.resume()
    participant.gradient_sum(terms, 2, weights)
    assert len(owner.entries("charge")) == 4
    assert [entry.round for entry in owner.entries("answer")] == [1, 2]


def test_a_pause_that_comes_between_the_look_and_the_coin_still_holds(
    owner: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = enrolled(owner, make_terms())
    look = participant._require_going

    def look_and_pause(terms: Terms) -> None:
        look(terms)
        participant.pause()

    monkeypatch.setattr(participant, "_require_going", look_and_pause)
    with pytest.raises(LedgerError, match="stopped"):
        participant.gradient_sum(make_terms(), 1, weights)
    assert owner.entries("charge") == []


def test_leaving_gives_back_what_was_not_played_and_is_for_good(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms, other = make_terms(), make_terms(experiment="other")
    participant = enrolled(owner, terms)
    participant.enrol(other)
    participant.gradient_sum(terms, 1, weights)
    spent = participant.ledger.spent(1e-5)
    participant.leave(terms.ledger_key)
    tallies = {tally.experiment: tally for tally in participant.ledger.tallies()}
    assert tallies[terms.ledger_key].reserved_rounds == tallies[terms.ledger_key].charged == 1
    assert tallies[other.ledger_key].reserved_rounds == 8
    assert participant.ledger.spent(1e-5) == spent
    participant.gradient_sum(other, 1, weights)
    for client in (participant, owner.open()):
        assert refusal_of(lambda: client.enrol(terms)) is Refusal.LEFT  # noqa: B023
        assert (
            refusal_of(lambda: client.gradient_sum(terms, 2, weights)) is Refusal.LEFT  # noqa: B023
        )


def test_an_experiment_that_was_left_is_refused_under_other_terms_too(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms, changed = make_terms(), make_terms(rounds=9)
    participant = enrolled(owner, terms)
    participant.enrol(changed)
    participant.leave(terms.ledger_key)
    assert [tally.reserved_rounds for tally in participant.ledger.tallies()] == [0, 0]
    for other in (changed, make_terms(rounds=7)):
        assert refusal_of(lambda: participant.enrol(other)) is Refusal.LEFT  # noqa: B023
        assert (
            refusal_of(lambda: participant.gradient_sum(other, 1, weights))  # noqa: B023
            is Refusal.LEFT
        )


def test_leaving_that_was_cut_short_is_finished_at_the_next_start(
    owner: Any, make_terms: Make
) -> None:
    terms = make_terms()
    enrolled(owner, terms).ledger.close()
    ledger_stops.leave(owner.ledger, terms.ledger_key)
    owner.open()
    with Ledger.open(owner.ledger) as ledger:
        assert [tally.reserved_rounds for tally in ledger.tallies()] == [0]


def test_an_unreadable_ledger_refuses_instead_of_going_on(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms(Mode.NONE)
    participant = enrolled(owner, terms)
    owner.ledger.rename(owner.ledger.with_suffix(".aside"))
    with pytest.raises(LedgerError):
        participant.gradient_sum(terms, 1, weights)


def test_the_current_experiment_is_the_one_last_agreed_to(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    first, second = make_terms(experiment="first"), make_terms(experiment="second")
    participant = enrolled(owner, first)
    participant.enrol(second)
    assert participant.current == second
    participant.gradient_sum(first, 1, weights)
    assert participant.current == first
    with pytest.raises(LedgerError):
        participant.gradient_sum(make_terms(experiment="unknown"), 1, weights)
    assert participant.current == first
