"""The cluster of docker-compose.yml, on a real engine: trained, looked into, and disturbed."""

import json
import time

import numpy as np
import pytest

from coinflower.deploy.containers.compose_clients import write
from coinflower.protocol.policy import load_policy
from tests.support.clusters import check_nothing_lost
from tests.support.federations import charges

pytestmark = pytest.mark.compose

ROUNDS = 30
CLIENTS = ("client-1", "client-2", "client-3")
ASK = """
import ssl, sys, urllib.request, urllib.error
context = ssl.create_default_context(cafile=sys.argv[1])
try:
    print(urllib.request.urlopen(sys.argv[2], data=b"", context=context, timeout=120).status)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError as error:
    print("unreachable")
"""


def test_the_default_cluster_trains_and_shows_no_more_than_it_must(cluster):
    default = cluster(COINFLOWER_ROUNDS=str(ROUNDS))
    default.wait_for_all(3)
    default.up("--build")

    published = {
        service: default.inspect(service)["HostConfig"]["PortBindings"]
        for service in ("gateway", "server", *CLIENTS)
    }
    assert {service for service, ports in published.items() if ports} == {"gateway"}
    ca = "/run/secrets/client-1/ca.pem"
    for url, answer in (
        ("https://gateway:8443/v1/control/list-runs", "404"),
        ("https://gateway:8443/v1/runtime/get-nodes", "404"),
        ("https://server:8000/v1/control/list-runs", "unreachable"),
    ):
        told = default.compose("exec", "-T", "client-1", "python", "-c", ASK, ca, url)
        assert told.strip() == answer
    for service in ("gateway", "server", *CLIENTS):
        config = default.inspect(service)["Config"]
        assert "PRIVATE KEY" not in str(config)
        assert config["User"] == "10001:10001"

    default.await_end()
    assert [row["round"] for row in default.rounds()] == list(range(1, ROUNDS + 1))
    assert all(row["available"] == 3 for row in default.rounds())
    assert default.rounds()[-1]["accuracy"] > 0.5
    assert all(np.isfinite(tensor).all() for tensor in default.model().values())
    histories = default.histories()
    assert [sorted(charges(one)) for one in histories] == [list(range(1, ROUNDS + 1))] * 3
    check_nothing_lost(default.rounds(), histories)

    # Set up and started a second time, a complete run is well and charges nothing.
    default.compose("down")
    default.up()
    healthy = dict.fromkeys(("gateway", "server", *CLIENTS), "healthy")
    default.wait_until(lambda: default.health() == healthy, "the health of all")
    default.await_end()
    assert default.histories() == histories


def test_faults_lose_no_round_and_charge_none_twice(cluster, engine):
    rounds = 240
    disturbed = cluster(COINFLOWER_ROUNDS=str(rounds))
    disturbed.up()
    disturbed.await_round(3)
    everybody = dict.fromkeys(CLIENTS, True)
    disturbed.wait_until(lambda: disturbed.online() == everybody, "all clients")
    calm = disturbed.rounds()[-1]["round"]

    disturbed.compose("pause", "server")
    time.sleep(10)
    disturbed.compose("unpause", "server")
    last = disturbed.await_round(disturbed.rounds()[-1]["round"] + 2)

    network, victim = f"{disturbed.project}_nodes", disturbed.container("client-2")
    engine.docker("network", "disconnect", network, victim)
    time.sleep(20)
    engine.docker("network", "connect", "--alias", "client-2", network, victim)
    last = disturbed.await_round(last + 2)

    disturbed.compose("kill", "client-3")
    disturbed.compose("start", "client-3")
    last = disturbed.await_round(last + 2)

    before = disturbed.histories()
    disturbed.compose("down")
    played = disturbed.rounds()
    assert played[-1]["round"] < rounds, "the run was over before the cluster went down"
    stopped = disturbed.histories()
    disturbed.up()
    disturbed.await_end()

    after = disturbed.histories()
    for early, late in (*zip(before, stopped, strict=True), *zip(stopped, after, strict=True)):
        assert late[: len(early)] == early, "a ledger lost what it held"
    check_nothing_lost(disturbed.rounds(), after, calm=calm)
    assert disturbed.rounds()[: len(played)] == played
    numbers = [row["round"] for row in disturbed.rounds()]
    assert numbers == sorted(set(numbers)), "a round was played twice"
    assert numbers[-1] == rounds
    assert disturbed.model()


def test_more_clients_that_do_not_trust_the_server(cluster, context):
    write(context, 5)
    names = ("docker-compose.yml", "docker-compose.clients.yml", "docker-compose.untrusted.yml")
    files = [word for name in names for word in ("--file", name)]
    many = cluster(*files, COINFLOWER_ROUNDS="5", COINFLOWER_EPSILON="2")
    many.wait_for_all(5)
    many.up()
    many.await_end()
    assert str(many.terms.mode) == "untrusted"
    assert all(row["available"] == 5 for row in many.rounds())
    histories = many.histories()
    assert [sorted(charges(one)) for one in histories] == [list(range(1, 6))] * 5
    assert [sum(entry.kind == "answer" for entry in one) for one in histories] == [5] * 5
    assert {load_policy(path).budget.epsilon for path in many.policies} == {2.0}
    seen = many.compose("exec", "-T", "client-5", "ls", "/run/secrets", "/run/secrets/client-5")
    assert set(seen.split()) >= {"client-5", "client-5.key"}
    assert "client-4" not in seen


def test_a_notary_in_a_container_of_its_own_opens_every_sum(cluster):
    files = ("--file", "docker-compose.yml", "--file", "docker-compose.masked.yml")
    masked = cluster(*files, COINFLOWER_ROUNDS="8")
    masked.wait_for_all(3)
    masked.up()
    masked.await_end()
    assert [sorted(charges(one)) for one in masked.histories()] == [list(range(1, 9))] * 3
    show = ("coinflower", "notary", "show", "--folder", "/var/lib/coinflower/notary", "--json")
    told = json.loads(masked.compose("exec", "-T", "notary", *show))
    assert told["rounds_opened"] == 8
    assert told["owners"] == list(CLIENTS)
