"""What a client of the same federation can find out, or spoil, over the API that all may call."""

import time

import pytest
from flwr.app import ConfigRecord, RecordDict

from coinflower.accounting.ledger.echo import NO_TOKEN
from coinflower.client.participant import Participant
from coinflower.deploy.flower.superlink import Superlink
from coinflower.protocol import messages
from tests.support.waiting import PATIENCE
from tests.wire.co_client import COINS, StockSuperlink, guesses, scene

# What answers would hold if nobody had thought of salt.
NO_SALT = b""
GUESSES = guesses(NO_SALT)


@pytest.fixture
def on(tmp_path, monkeypatch):
    """Return a function that sets the scene, with or without salt and fence."""
    # The curious one calls once, and a busy machine may take its time to answer.
    monkeypatch.setattr("coinflower.flower_internals.fleet._TIMEOUT_SECONDS", PATIENCE)

    def make(*, salted=True, fenced=True):
        if not salted:
            monkeypatch.setattr(messages, "salt", lambda _=0: NO_SALT)
            # An echo is random, too, and would do for a salt.
            monkeypatch.setattr(Participant, "echo", lambda _: NO_TOKEN)
        return scene(tmp_path, Superlink if fenced else StockSuperlink)

    return make


def pulled(curious, run, *, seconds):
    """Return the coins of answers that pulling finds, trying all for a while."""
    deadline = time.monotonic() + seconds
    while True:
        # What is announced but not uploaded yet has no content.
        found = [guess[messages.COINS] for guess in GUESSES if curious.find(run, guess.object_id)]
        if found or time.monotonic() > deadline:
            return found


def pushed(curious, question):
    """Return the coins of answers that need not be uploaded as part of another answer."""
    there = curious.stored_already(question, [guess.object_id for guess in GUESSES])
    return [guess[messages.COINS] for guess in GUESSES if guess.object_id in there]


def test_without_salt_and_fence_all_coins_are_told_twice(on):
    with on(salted=False, fenced=False) as played:
        found = pulled(played.curious, played.run, seconds=PATIENCE)
        assert pushed(played.curious, played.question) == found
        assert found == [played.finish()]


@pytest.mark.parametrize(("salted", "fenced"), [(True, False), (False, True), (True, True)])
def test_salt_and_fence_each_hide_the_coins(on, salted, fenced):
    with on(salted=salted, fenced=fenced) as played:
        assert pulled(played.curious, played.run, seconds=2) == []
        assert pushed(played.curious, played.question) == []
        replies = {
            played.curious.put(played.run, guess.deflate(), guess.object_id) for guess in GUESSES
        }
        assert len(replies) == 1
        assert len(played.finish()) == COINS


def test_a_node_reads_its_own_question_until_it_has_done_with_it(on):
    with on() as played:
        curious, run = played.curious, played.run
        assert all(curious.find(run, name) for name in played.names)
        assert curious.find(run, played.others_question) is None
        curious.delete(run, played.question.metadata.message_id)
        assert {curious.find(run, name) for name in played.names} == {None}


def test_without_the_fence_a_shared_content_tells_whether_others_have_it_still(on):
    with on(fenced=False) as played:
        curious, run = played.curious, played.run
        *shared, _ = played.names
        curious.delete(run, played.question.metadata.message_id)
        assert all(curious.find(run, name) for name in shared)
        curious.delete(run, played.others_question)
        assert {curious.find(run, name) for name in shared} == {None}


def test_nobody_deletes_or_answers_the_question_of_another(on):
    with on() as played:
        played.curious.delete(played.run, played.others_question)
        played.curious.answer_for(played.others_question, played.victim.node_id, played.question)
        assert len(played.finish()) == COINS


@pytest.mark.parametrize("fenced", [False, True])
def test_only_without_the_fence_a_client_asks_in_the_servers_name(on, fenced, caplog):
    with on(fenced=fenced) as played:
        content = RecordDict({messages.ASK: ConfigRecord({messages.TERMS: "forged"})})
        played.curious.forge(played.run, played.victim.node_id, content)
        deadline = time.monotonic() + (3 if fenced else PATIENCE)
        while "Refused to enrol" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ("Refused to enrol" in caplog.text) is not fenced
        # Nor does it see, behind the fence, how much all have sent and received.
        assert any(played.curious.totals(played.run)) is not fenced
