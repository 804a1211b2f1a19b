"""A fifth host with a notary, set up by the guide's own commands; it is cut off, and killed.

The tests share one run and are in order: it starts with the first and is complete with the last.
"""

import signal

import pytest

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.server.journal import read_metrics
from tests.hosts import attacks
from tests.hosts.masked_federation import MaskedFederation
from tests.hosts.network import SERVER_NAME, TO_THE_END, wait_until
from tests.hosts.test_hosts import NAMES, QUICK
from tests.hosts.test_hosts import ROUNDS as LONG
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.hosts

ROUNDS = 60


@pytest.fixture(scope="module")
def federation(network):
    hosts = [network.add(name) for name in ("server", *NAMES, "notary")]
    made = MaskedFederation(hosts[0], hosts[1:-1], hosts[-1], rounds=ROUNDS)
    made.set_up((QUICK, "poll_seconds = 1.2"), (f"rounds = {LONG}", f"rounds = {ROUNDS}"))
    return made


def await_opening(federation):
    """Wait until the notary opens one more round than it has so far."""
    before = federation.opened()["rounds_opened"]
    wait_until(
        lambda: federation.opened()["rounds_opened"] > before, "a further round to be opened"
    )


def test_the_guide_brings_a_notary_and_three_clients_to_a_server(federation):
    wait_until(lambda: federation.opened()["experiments"], "an opened round")
    wait_until(lambda: federation.round() >= 2, "the second round")
    await_opening(federation)
    assert federation.opened()["owners"] == ["ward-7", "ward-8", "ward-9"]
    assert "is the notary" in federation.server.log("server.log")
    assert federation.server.log("server.log").count("enrolled with declared size 480") == 3


def test_nobody_can_connect_to_the_notary(federation):
    notary = federation.notary
    found = federation.clients[0].python(attacks.CONNECTS, notary.address, 22, 80, 8443, 8455)
    assert not any(found.values()), found
    assert federation.clients[0].python(attacks.CONNECTS, SERVER_NAME, 8443) == {"8443": True}


def test_a_notary_that_is_cut_off_is_waited_for(federation):
    news = federation.notary.news("notary.log")
    at_server = federation.server.news("server.log")
    federation.notary.cut_cable()
    wait_until(lambda: "cannot be reached" in news(), "the notary's complaint")
    wait_until(lambda: "its sum was not opened" in at_server(), "a void round")
    federation.notary.mend_cable()
    wait_until(lambda: "answers again" in news(), "the notary's return")
    await_opening(federation)
    federation.require_alive()


def test_a_notary_that_is_killed_goes_on_where_it_was(federation):
    before = federation.opened()["experiments"][0]
    federation.working.kill()
    federation.working.wait(PATIENCE)
    federation.open_office()
    await_opening(federation)
    after = federation.opened()["experiments"][0]
    assert after["terms"] == before["terms"]
    assert after["last_round"] > before["last_round"]


def test_an_owner_that_the_notary_does_not_count_any_more_stays_out(federation):
    at_server = federation.server.news("server.log")
    federation.notary.run("coinflower notary revoke ward-9.pub --folder notary")
    wait_until(lambda: "A notary refused this client's ticket" in at_server(), "the objection")
    federation.running.send_signal(signal.SIGTERM)
    assert federation.running.wait(PATIENCE) in (0, 1)  # it may have given up on a third client
    federation.notary.run("coinflower notary allow ward-9.pub --folder notary")
    federation.serve()
    await_opening(federation)


def test_the_run_is_complete_and_no_round_was_opened_twice(federation):
    assert federation.running.wait(TO_THE_END) == 0, federation.server.log("server.log")
    rounds = [row["round"] for row in read_metrics(federation.server.folder / "state")]
    assert rounds == sorted(set(rounds))
    assert rounds[-1] == federation.rounds
    (found,) = federation.opened()["experiments"]
    assert found["rounds"] < federation.rounds  # those that it missed are void
    assert found["last_round"] == federation.rounds
    assert found["fewest_owners"] == 3
    assert federation.notary.log("notary.log").count("Opened round") == found["rounds"]
    assert "Traceback" not in federation.notary.log("notary.log")
    for client in federation.clients:
        assert "Traceback" not in client.log("client.log")
        with Ledger.open(client.folder / "ledger.db", read_only=True) as ledger:
            ledger.verify()
            charges = [entry.round for entry in ledger.history() if entry.kind == "charge"]
        assert len(charges) == len(set(charges)) >= found["rounds"]
