"""The resident node against real SuperLinks; ``test_scripted.py`` scripts its connection."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.proto.control_pb2 import ListRunsRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from coinflower.client.node.polling_group import PollingGroup
from coinflower.client.node.private_key import load_private_key
from coinflower.client.node.resident import ResidentNode
from coinflower.deploy.flower.run_app import write_app
from coinflower.deploy.flower.superlink import Superlink, TlsFiles
from coinflower.protocol.messages import FAILURE_REASON
from tests.support.nodes import SERVER, echo_app, running
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a server saw in a run over three resident nodes."""
    directory = tmp_path_factory.mktemp("run")
    stop, polling_group = threading.Event(), PollingGroup()
    with Superlink(directory) as superlink:
        nodes = [
            ResidentNode(
                superlink.address,
                echo_app(),
                stop=stop,
                insecure=True,
                heartbeat_interval=1800,  # who does not sign off counts as there for an hour
                node_config={"name": f"node{index}"},
                polling_group=polling_group,
            )
            for index in range(3)
        ]
        out = directory / "out.json"
        app = write_app(
            directory / "app",
            serverapp="toy_server:app",
            clientapp="nowhere:app",
            config={"nodes": 3, "out": str(out)},
        )
        (app / "toy_server.py").write_text(SERVER)
        with running(*nodes, stop=stop):
            run_id = superlink.start_run(app)
            status = superlink.wait(run_id, timeout=PATIENCE)
            assert status.completed, superlink.run_log(run_id)
            found: dict[str, Any] = json.loads(out.read_text())
            runs = superlink.ask(
                lambda control: control._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict
            )
            found["runtime"] = runs[run_id].clientapp_runtime
            assert len(superlink.online_nodes()) == 3
        found["superlink"] = superlink
        yield found


def test_three_nodes_answer_with_their_own_config_and_state(outcome: dict[str, Any]) -> None:
    assert sorted(outcome["query.invite"]) == [[True, f"node{i} 1"] for i in range(3)]
    assert sorted(outcome["train.gradient"]) == [[True, f"node{i} 2"] for i in range(3)]


def test_a_round_trip_takes_no_three_second_naps(outcome: dict[str, Any]) -> None:
    assert max(seconds for _, seconds in outcome["naps"]) <= 0.5


def test_a_handler_that_raises_tells_the_server_nothing(outcome: dict[str, Any]) -> None:
    assert outcome["train.fail"] == [[2, FAILURE_REASON]] * 3
    assert "patient" not in str(outcome)


def test_an_unknown_message_type_gets_the_same_error(outcome: dict[str, Any]) -> None:
    assert outcome["query.nothing"] == [[2, FAILURE_REASON]] * 3


def test_no_reply_states_how_long_it_took(outcome: dict[str, Any]) -> None:
    assert outcome["runtime"] == 0


def test_stopping_signs_the_nodes_off(outcome: dict[str, Any]) -> None:
    wait_until(lambda: outcome["superlink"].online_nodes() == [])


def _kill_superlink(superlink: Superlink) -> None:
    needle = f"--port\0{superlink.port}\0".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if needle in command and b"guard.py" not in command:
                os.kill(int(entry.name), signal.SIGKILL)


def test_a_node_waits_for_its_superlink_and_survives_its_death(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stop = threading.Event()
    first = Superlink(tmp_path / "first")
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    node = ResidentNode(
        first.address, echo_app(), stop=stop, insecure=True, max_backoff=1.0, heartbeat_interval=10
    )
    with running(node, stop=stop):
        sentence = f"The SuperLink at {first.address} cannot be reached"
        wait_until(lambda: sentence in caplog.text)
        with first:
            wait_until(lambda: first.online_nodes() == [node.node_id])
            known_as = node.node_id
            caplog.clear()
            _kill_superlink(first)
            wait_until(lambda: sentence in caplog.text)
        with Superlink(tmp_path / "second", port=first.port) as second:
            # The SuperLink knows the node a moment before the node hears its number.
            wait_until(lambda: second.online_nodes() == [node.node_id])
            assert node.node_id != known_as


def test_a_silent_network_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        node = ResidentNode(address, echo_app(), stop=stop, insecure=True)
        with running(node, stop=stop):
            wait_until(lambda: "cannot be reached" in caplog.text)


def _certificates(directory: Path) -> TlsFiles:
    """A certificate for 127.0.0.1 that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "SuperLink")])
    moment = datetime.datetime.now(datetime.UTC)
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(moment - datetime.timedelta(hours=1))
        .not_valid_after(moment + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([here]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = directory / "certificate.pem"
    pem.write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = directory / "key.pem"
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return TlsFiles(ca=pem, certificate=pem, key=secret)


def _node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return load_private_key(path)


def test_a_registered_key_joins_over_tls_and_an_unknown_key_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    tls = _certificates(tmp_path)
    known, unknown = _node_key(tmp_path / "known"), _node_key(tmp_path / "unknown")
    with Superlink(tmp_path, tls=tls, authenticate_nodes=True) as superlink:
        key = public_key_to_bytes(known.public_key())
        node_id = superlink.ask(lambda control: control.register_node(key))
        nodes = [
            ResidentNode(
                superlink.address,
                echo_app(),
                stop=stop,
                root_certificates=tls.ca.read_bytes(),
                private_key=key,
                heartbeat_interval=1800,
            )
            for key in (known, unknown)
        ]
        with running(*nodes, stop=stop):
            wait_until(lambda: superlink.online_nodes() == [node_id])
            wait_until(lambda: "does not accept this node" in caplog.text)
        wait_until(lambda: superlink.online_nodes() == [])


@pytest.mark.parametrize("field", ["poll_interval", "heartbeat_interval"])
def test_bad_intervals_are_named(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} = -1 must"):
        ResidentNode("a:1", echo_app(), stop=threading.Event(), **{field: -1})


def test_a_file_that_is_no_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("nonsense")
    with pytest.raises(ValueError, match="key is not an unprotected private key"):
        load_private_key(path)
