"""What clients whose coins are secret put on the wire; ``make wire`` tries to read the coins."""

import pytest

from coinflower.masking.tickets import Occasion, split_tickets
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from tests.wire.observed import observe
from tests.wire.views import co_client_view, network_view, notary_view, server_view

ROUNDS = 10
FIELDS = {
    Mode.UNTRUSTED: (messages.ECHO, messages.SALT, messages.SUM),
    Mode.MASKED: (messages.TICKET, messages.ECHO, messages.SALT, messages.SUM),
}


@pytest.fixture(scope="module", params=FIELDS, ids=str)
def seen(request, tmp_path_factory):
    """Return what a few rounds of three clients showed."""
    return observe(tmp_path_factory.mktemp("wire"), request.param, ["honest"] * 3, rounds=ROUNDS)


def test_all_answers_have_the_same_fields_and_sizes_and_state_no_running_time(seen):
    sums = seen.sums()
    assert {one.node for one in sums} == set(seen.nodes)
    assert {tuple(one.answer) for one in sums} == {FIELDS[seen.mode]}
    assert len({max(one.sizes) for one in sums}) == 1
    assert {one.wanted for one in sums} == {3}
    assert {one.runtime for one in sums} == {0.0}


def test_no_two_answers_share_a_salt_or_a_number(seen):
    sums = seen.sums()
    assert len({one.answer[messages.SALT] for one in sums}) == len(sums)
    assert len({one.answer[messages.SUM][:64] for one in sums}) == len(sums)


def test_every_coin_that_was_flipped_is_answered(seen):
    asked = set(list(seen.rounds_asked())[:-1])  # the last answers may still be on their way
    for client, node in enumerate(seen.nodes):
        answered = {one.question[messages.ROUND] for one in seen.sums() if one.node == node}
        assert asked & set(seen.coins[client]) <= answered


@pytest.mark.parametrize("view", [server_view, network_view, notary_view])
def test_an_observer_has_a_row_for_every_client_and_round(seen, view):
    if view is notary_view and seen.notary is None:
        assert not seen.openings()
        return
    found = view(seen)
    assert len(found) == len(found.coins) >= 3 * (ROUNDS - 2)
    assert found.rows.shape[1] > 15


def test_a_notary_gets_one_question_a_round_whose_order_tells_only_whose_tickets_are_in_it(seen):
    openings = [one for one in seen.exchanges if one.kind == f"query.{messages.OPEN}"]
    assert len(openings) == len(seen.openings())
    for round_, one in seen.openings().items():
        occasion = Occasion.of(seen.terms, round_)
        tickets = split_tickets(one.question[messages.TICKETS], occasion, len(seen.owners))
        owners = [ticket.owner for ticket in tickets]
        assert owners == sorted(owners)
        assert set(owners) <= set(seen.owners)
        fields = {messages.TERMS, messages.ROUND, messages.LENGTH, messages.TICKETS}
        assert set(one.question) <= {*fields, messages.ASKER, messages.SALT}


def test_a_co_client_has_a_row_for_every_other_client_and_round(seen):
    found = co_client_view(seen, "honest")
    assert len(found) == len(found.coins) >= 2 * (ROUNDS - 2)
    assert found.rows.shape[1] > 15
