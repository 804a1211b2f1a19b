"""The server sends back what clients said of their ledgers; a ledger that was set back stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import coinflower.server.clients.roster
from coinflower.accounting.ledger.echo import NO_TOKEN, TOKEN_BYTES
from coinflower.protocol import messages
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.protocol.policy import Refusal, load_policy
from coinflower.server.checkpoint import CheckpointFolder
from coinflower.server.clients.attendance import TooFewClientsError

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coinflower.server.clients.roster, "_ASK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(coinflower.server.clients.roster, "_LOOK_SECONDS", 0.05)


class _StopError(Exception):
    pass


def play_until(fed: Any, last: int) -> None:
    """Play until a round, as if the server was stopped then, and close the clients."""

    def stop(round_: int, _: np.ndarray) -> None:
        if round_ == last:
            raise _StopError

    with pytest.raises(_StopError):
        fed.run(evaluate=stop)
    fed.grid.owners.close()


def ledger_of(fed: Any, node: int) -> Path:
    return load_policy(fed.grid.policies[node]).ledger


# A sum over one client is never opened, so mode masked has tests of its own.
PRIVATE = [mode for mode in PRIVATE_MODES if not mode.masks_sums]


@pytest.mark.parametrize("joins_anew", [False, True], ids=["same node", "another node"])
@pytest.mark.parametrize("mode", PRIVATE)
def test_a_ledger_that_was_set_back_flips_no_coin_and_the_server_hears_of_it(
    federation: Make, mode: Mode, joins_anew: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(mode, sizes=(12,), rounds=30, p=1.0)
    play_until(fed, 3)
    ledger = ledger_of(fed, 1000)
    older = ledger.read_bytes()
    play_until(fed, 6)
    ledger.write_bytes(older)
    node = 1000
    if joins_anew:
        node = 2000
        fed.grid.policies = {2000: fed.grid.policies[1000]}
        fed.grid.online = {2000}
    charges = len(fed.entries(node, "charge"))
    for _ in range(2):  # a restart of client and server changes nothing
        with pytest.raises(TooFewClientsError, match=Refusal.SET_BACK.value):
            fed.run(patience_seconds=0.5)
        assert len(fed.entries(node, "charge")) == charges
        fed.grid.owners.close()
    assert "STOPPED: The ledger" in caplog.text
    assert "was set back" in caplog.text


def test_the_newer_ledger_goes_on(federation: Make) -> None:
    fed = federation(Mode.TRUSTED, sizes=(12,), rounds=30)
    play_until(fed, 3)
    ledger = ledger_of(fed, 1000)
    older = ledger.read_bytes()
    play_until(fed, 6)
    newer = ledger.read_bytes()
    ledger.write_bytes(older)
    with pytest.raises(TooFewClientsError):
        fed.run(patience_seconds=0.5)
    fed.grid.owners.close()
    ledger.write_bytes(newer)
    fed.run()
    assert len(fed.entries(1000, "charge")) > 20


def test_every_question_carries_the_echo_of_the_answer_before(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, sizes=(12, 12), rounds=4)
    last: dict[int, bytes] = {}
    carried: list[tuple[bytes, bytes]] = []

    def watch(message: Message, deliver: Callable[[], Message]) -> Message:
        node = message.metadata.dst_node_id
        echo = message.content.config_records[messages.ECHO][messages.ECHO]
        assert isinstance(echo, bytes)
        carried.append((echo, last.get(node, NO_TOKEN)))
        reply = deliver()
        token = reply.content.config_records[messages.ANSWER][messages.ECHO]
        assert isinstance(token, bytes)
        last[node] = token
        return reply

    fed.grid.interfere = watch
    fed.run()
    assert len(carried) == 2 * 5
    assert all(echo == expected for echo, expected in carried)
    assert {len(echo) for echo, _ in carried} == {TOKEN_BYTES}


def test_a_server_that_lost_its_echoes_goes_on(
    federation: Make, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation(Mode.TRUSTED, sizes=(12,), rounds=6)
    play_until(fed, 3)
    for content in ("{", "[]", '{"a": 1}', '{"a": "zz"}'):
        (fed.state / "echoes.json").write_text(content)
        assert fed.checkpoints().load_echoes() == {}
        assert "echoes.json is damaged" in caplog.text
    fed.run()
    assert list(fed.checkpoints().load_echoes().values()) != []


def test_a_client_cannot_answer_for_the_ledger_of_another(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, sizes=(12, 12), rounds=4)
    tokens: dict[int, bytes] = {}

    def lie(message: Message, deliver: Callable[[], Message]) -> Message:
        reply = deliver()
        node = message.metadata.dst_node_id
        answer = reply.content.config_records[messages.ANSWER]
        enrolling = messages.ENROLLED in answer
        tokens.setdefault(node, bytes(answer[messages.ECHO]))  # type: ignore[arg-type]
        if node == 1001 and not enrolling:
            answer[messages.ECHO] = tokens[1000][:16] + bytes(TOKEN_BYTES - 16)
        return reply

    fed.grid.interfere = lie
    fed.run()
    kept = CheckpointFolder(fed.state, fed.terms.hash).load_echoes()
    assert len(kept) == 2
    assert all(any(token[16:]) for token in kept.values())


def test_what_a_round_writes_grows_with_those_who_answered(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, "terms")
    echoes = {f"{number:04}": bytes([number % 256]) * 8 for number in range(1000)}
    folder.save_echoes(echoes, echoes)
    written = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    for number in range(19):
        echoes["0007"], echoes[f"{number:04}"] = bytes([number]) * 8, b"changed!"
        folder.save_echoes(echoes, {"0007", f"{number:04}"})
    assert (tmp_path / "echoes.json").stat().st_mtime_ns == written["echoes.json"]
    assert (tmp_path / "echoes.newer").stat().st_size < 38 * 30
    assert CheckpointFolder(tmp_path, "terms").load_echoes() == echoes


def test_newer_echoes_are_merged_before_they_are_many(tmp_path: Path) -> None:
    echoes = {f"{number:04}": bytes(8) for number in range(100)}
    CheckpointFolder(tmp_path, "terms").save_echoes(echoes, echoes)
    for number in range(30):
        folder = CheckpointFolder(tmp_path, "terms")
        assert folder.load_echoes() == echoes
        echoes["0001"] = bytes([number]) * 8
        folder.save_echoes(echoes, {"0001"})
        newer = tmp_path / "echoes.newer"
        assert not newer.exists() or newer.read_text().count("\n") < 10
    assert CheckpointFolder(tmp_path, "terms").load_echoes() == echoes


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path: Path) -> None:
    echoes = {f"{number:04}": bytes(8) for number in range(100)}
    folder = CheckpointFolder(tmp_path, "terms")
    folder.save_echoes(echoes, echoes)
    folder.save_echoes(echoes | {"0001": b"changed!"}, {"0001"})
    with (tmp_path / "echoes.newer").open("a") as file:
        file.write("0002 ffff")
    again = CheckpointFolder(tmp_path, "terms")
    known = again.load_echoes()
    assert known == echoes | {"0001": b"changed!"}
    again.save_echoes(known | {"0003": b"changed?"}, {"0003"})
    assert CheckpointFolder(tmp_path, "terms").load_echoes()["0003"] == b"changed?"
