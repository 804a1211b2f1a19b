"""Four hosts, the guide's own commands, and everything that may go wrong between them.

The tests share one run and are in order: it starts with the first and is complete with the last.
"""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.server.journal import read_metrics
from tests.hosts import attacks
from tests.hosts.federation import Federation
from tests.hosts.network import SERVER_NAME, TO_THE_END, wait_until
from tests.support.documents import block
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.hosts

ROUNDS = 400
# Rounds of some seconds until the last fault is over, so that no machine is done before.
QUICK, SLOW = "poll_seconds = 0.2", "poll_seconds = 3.0"
NAMES = ("ward-7", "ward-8", "ward-9")


@pytest.fixture(scope="module")
def federation(network):
    made = Federation(network.add("server"), [network.add(name) for name in NAMES], rounds=ROUNDS)
    made.set_up((QUICK, SLOW))
    return made


def kept_out(host, line, sentence, log):
    """Start a client that must not get in, and wait until it says why."""
    program = host.start(line, log)
    wait_until(lambda: sentence in host.log(log), f"{sentence!r} in {host.folder / log}")
    assert "Joined" not in host.log(log)
    program.send_signal(signal.SIGTERM)
    assert program.wait(PATIENCE) == 0


def test_the_guide_brings_three_clients_to_a_server(federation):
    wait_until(federation.all_online, "three nodes online")
    wait_until(lambda: federation.round() >= 1, "the first round")
    told = federation.server.run(block("server status")).stdout
    assert "SERVING" in told
    assert "ward-9" in told
    assert federation.server.log("server.log").count("enrolled with declared size 480") == 3


def test_only_the_documented_port_is_open(federation):
    found = federation.clients[0].python(
        attacks.CONNECTS, SERVER_NAME, 8443, 8000, 8451, 8452, 22, 80
    )
    assert found == {"8443": True} | dict.fromkeys(["8000", "8451", "8452", "22", "80"], False)


def test_a_client_host_cannot_start_runs_or_register_nodes(federation):
    client = federation.clients[0]
    before = set(federation.status()["nodes"])
    found = client.python(attacks.CONTROLS, f"{SERVER_NAME}:8443")
    assert len(found) == 3
    assert all("404" in answer for answer in found), found
    paths = [
        "POST /v1/control/start-run",
        "POST /v1/fleet/../control/start-run",
        "POST /v1/fleet/%2e%2e/control/start-run",
        "POST //v1/control/register-node",
        "POST /v1/fleet/..%2fcontrol/register-node",
        "POST /V1/control/list-nodes",
        "POST /v1/runtime/pull-messages",
        "GET /v1/fleet/pull-messages",
        "GET /docs",
        "GET /openapi.json",
    ]
    answers = client.python(attacks.ASKS, SERVER_NAME, *paths)
    assert set(answers.values()) <= {400, 404, 405}, answers
    assert client.python(attacks.ASKS, SERVER_NAME, "GET /health") == {"GET /health": 200}
    assert set(federation.status()["nodes"]) == before


def test_plain_http_is_refused(federation):
    client = federation.clients[0]
    assert client.python(attacks.PLAIN, SERVER_NAME) == 400
    line = f"coinflower client policy.toml --superlink {SERVER_NAME}:8443 --insecure"
    refused = client.run(line, check=False)
    assert refused.returncode == 2
    assert "sends everything unprotected" in refused.stderr


def test_a_key_that_was_not_allowed_is_kept_out(federation):
    host = federation.clients[1]
    host.run("coinflower keys client keys stranger")
    line = block("client run").replace("ward-7", "stranger")
    kept_out(host, line, "its key is not allowed there", "stranger.log")


def test_a_copy_of_a_key_in_use_is_kept_out(federation):
    host = federation.clients[1]
    line = block("client run", host.name)
    kept_out(host, line, "another client is using the same key", "copy.log")
    assert federation.status()["nodes"][host.name]


def test_a_wrong_authority_is_kept_out(federation):
    host = federation.clients[1]
    host.run("coinflower keys init other")
    line = block("client run", host.name).replace("ca.pem", "other/ca.pem")
    kept_out(host, line, "was not signed by the authority given here", "wrong-ca.log")


def test_an_address_that_the_certificate_does_not_name_is_kept_out(federation):
    host = federation.clients[1]
    line = block("client run", host.name).replace(SERVER_NAME, federation.server.address)
    kept_out(host, line, "its certificate is for another address", "address.log")


def test_an_expired_certificate_is_kept_out_on_both_sides(federation):
    shows, asks = federation.clients[2], federation.clients[1]
    (shows.folder / "expired.py").write_text(attacks.EXPIRED)
    program = shows.start(f"python expired.py {shows.address}", "expired.log")
    wait_until((shows.folder / "expired" / "server.pem").exists, "an expired certificate")
    (asks.folder / "past.pem").write_bytes((shows.folder / "expired" / "ca.pem").read_bytes())
    line = block("client run", asks.name).replace(SERVER_NAME, shows.address)
    line = line.replace("ca.pem", "past.pem")
    kept_out(asks, line, "its certificate has expired", "expired.log")
    program.send_signal(signal.SIGTERM)
    program.wait(PATIENCE)
    (shows.folder / "settings.toml").write_text(block("settings.toml"))
    served = shows.run("coinflower server run settings.toml --keys expired", check=False)
    assert served.returncode == 2
    assert "The server's certificate in expired expired on" in served.stderr


def test_a_cable_that_is_cut_in_mid_run_loses_nothing(federation):
    federation.require_alive()
    cut = federation.clients[0]
    news = cut.news("client.log")
    cut.cut_cable()
    wait_until(lambda: "cannot be reached" in news(), "the client's complaint")
    cut.mend_cable()
    wait_until(lambda: "answers again" in news(), "the client's return")
    wait_until(federation.all_online, "three nodes online")
    federation.require_alive()


def test_garbage_leaves_the_run_alive(federation):
    found = federation.clients[2].python(attacks.GARBAGE, SERVER_NAME, timeout=TO_THE_END)
    assert found == {"turned away": 60}
    federation.require_alive()


def test_a_body_of_a_gigabyte_is_turned_away(federation):
    polite, *bold = federation.clients[2].python(attacks.HUGE, SERVER_NAME)
    assert "413" in polite
    assert all(answer == "closed" or "413" in answer for answer in bold), bold
    federation.require_alive()


def test_one_address_gets_no_more_connections_than_the_firewall_allows(federation):
    opened = federation.clients[2].python(attacks.CROWDS, SERVER_NAME, 600)
    # 256 at a time: others of the same address, such as the client's own, may end meanwhile.
    assert 200 < opened < 400


def test_two_thousand_slow_connections_are_let_go_and_others_served_meanwhile(federation):
    hostile, other = federation.clients[2], federation.clients[0]
    addresses = [f"10.77.0.{number}" for number in range(101, 109)]
    for address in addresses:
        hostile.run(f"ip addr add {address}/24 dev eth0")
    asked = "GET /health"
    with ThreadPoolExecutor() as pool:
        attack = pool.submit(
            hostile.python, attacks.SLOW, SERVER_NAME, 16, 250, *addresses, timeout=TO_THE_END
        )
        while not attack.done():
            assert other.python(attacks.ASKS, SERVER_NAME, asked) == {asked: 200}
    opened, left = attack.result()
    assert opened > 1000
    assert left == 0
    federation.require_alive()


def test_a_revoked_node_is_dropped_and_returns_when_it_is_allowed_again(federation):
    server, host = federation.server, federation.clients[2]
    at_client, at_server = host.news("client.log"), server.news("server.log")
    server.run(block("server revoke", host.name))
    wait_until(lambda: "its key is not allowed there" in at_client(), "the refusal")
    assert host.name not in federation.status()["nodes"]
    federation.require_alive()
    server.run(block("server allow", host.name))
    wait_until(federation.all_online, "three nodes online again")
    assert f"{host.name} may join again" in at_server()
    federation.require_alive()


def test_a_server_that_is_told_to_stop_ends_a_round_and_goes_on_when_started_again(federation):
    news = federation.server.news("server.log")
    federation.running.send_signal(signal.SIGTERM)
    assert federation.running.wait(PATIENCE) == 0
    played = federation.round()
    assert f"Stopped after round {played} of {ROUNDS}" in news()
    federation.change((SLOW, QUICK))
    federation.serve()
    wait_until(federation.all_online, "three nodes online again")
    wait_until(lambda: federation.round() > played, "a round after the restart")


def test_the_run_is_complete_and_every_ledger_whole(federation):
    assert federation.running.wait(TO_THE_END) == 0, federation.server.log("server.log")
    rounds = [row["round"] for row in read_metrics(federation.server.folder / "state")]
    assert rounds == sorted(set(rounds))
    assert rounds[-1] == ROUNDS
    assert (federation.server.folder / "state" / "model.safetensors").exists()
    assert federation.status()["accuracy"] > 0.5
    for client in federation.clients:
        assert "Traceback" not in client.log("client.log")
        with Ledger.open(client.folder / "ledger.db", read_only=True) as ledger:
            ledger.verify()
            entries = list(ledger.history())
        charges = [entry.round for entry in entries if entry.kind == "charge"]
        answers = [entry.round for entry in entries if entry.kind == "answer"]
        assert len(charges) == len(set(charges)) <= ROUNDS
        assert len(answers) == len(set(answers))
        assert set(answers) <= set(charges)
        assert len(charges) > ROUNDS / 4
