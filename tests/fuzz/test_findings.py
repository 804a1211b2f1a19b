"""What fuzzing found once, so that it stays found."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from safetensors.numpy import save

from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerCorruptError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.node.link import Link, UnreachableError
from coinflower.client.node.polling_group import PollingGroup
from coinflower.client.node.private_key import load_private_key
from coinflower.deploy.keys.key_files import load_public_key
from coinflower.flower_internals import runtime as flower_runtime
from coinflower.flower_internals.messages import as_task
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.protocol.strict import read_toml
from coinflower.protocol.terms import Terms
from coinflower.server.aggregation import RunningSum, largest_norm
from coinflower.server.checkpoint import CheckpointFolder
from coinflower.server.grid import PromptGrid
from tests.fuzz.fuzz_files import HASH, ROUND
from tests.fuzz.fuzz_server import (
    ASKED,
    EVIL,
    HONEST,
    TERMS,
    _objects,
    _reply_metadata,
    _Runtime,
)
from tests.fuzz.fuzz_wire import framed, object_id
from tests.support.builders import exchange_in_process, make_http_grid


def link_to(handler: Callable[[httpx.Request], httpx.Response]) -> Link:
    link = Link(
        "127.0.0.1:1",
        insecure=True,
        root_certificates=None,
        private_key=None,
        heartbeat_interval=10.0,
        polling_group=PollingGroup(),
        stop=threading.Event(),
    )
    link._fleet._client._client = httpx.Client(transport=httpx.MockTransport(handler))
    return link


def test_an_answer_that_cannot_be_decoded_does_not_end_the_heartbeat() -> None:
    headers = {"content-encoding": "gzip"}
    link = link_to(lambda _: httpx.Response(200, headers=headers, content=b"no gzip"))
    with pytest.raises(UnreachableError):
        link.beat()


def test_a_message_without_content_is_no_surprise() -> None:
    # A list of one empty message, and a list of one empty tree.
    link = link_to(lambda _: httpx.Response(200, content=b"\x12\x00\x1a\x00\x22\x00"))
    with pytest.raises(UnreachableError, match="malformed"):
        link.poll()


@pytest.mark.parametrize("text", ["a = " + "[" * 3000, "a = " + "9" * 5000])
def test_toml_that_is_too_deep_or_too_long_names_its_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"policy\.toml is not TOML"):
        read_toml(path)


@pytest.mark.parametrize("used", ["Infinity", "-3", "2.5", "true", '"3"', "[" * 3000])
def test_used_rounds_that_are_no_count_are_damage(tmp_path: Path, used: str) -> None:
    text = f'{{"terms": "{HASH}", "used_through": {used}}}'
    (tmp_path / "used-rounds.json").write_text(text)
    with pytest.raises(ValueError, match="damaged"):
        CheckpointFolder(tmp_path, HASH).used_through()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights", np.full(4, math.nan, np.float32)),
        ("velocity", np.zeros(4, np.float64)),
        ("round", np.array([math.inf], np.float32)),
        ("round", np.array([-1])),
    ],
)
def test_a_checkpoint_with_other_values_than_were_saved_is_damage(
    tmp_path: Path, name: str, value: np.ndarray
) -> None:
    tensors: dict[str, Any] = {
        "weights": np.zeros(4, np.float32),
        "velocity": np.zeros(4, np.float32),
        "round": np.array([3]),
        name: value,
    }
    (tmp_path / "checkpoint.safetensors").write_bytes(save(tensors, metadata={"terms": HASH}))
    with pytest.raises(ValueError, match="damaged"):
        CheckpointFolder(tmp_path, HASH).load()


def test_a_key_with_a_compressed_point_is_refused_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "node.pub"
    # nistp384, then a point whose first byte says that it is compressed.
    path.write_text(
        "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAAAxAg" + "A" * 64
    )
    for load in (load_private_key, load_public_key):
        with pytest.raises(ValueError, match=r"node\.pub"):
            load(path)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    with Ledger.create(path, "ward 7") as book:
        book.reserve("trial", ROUND, 100, Budget(epsilon=1e6, delta=1e-5))
        book.flip_all("trial", range(1, 11))
    return path


@pytest.mark.parametrize(
    "edit",
    [
        "DROP TRIGGER entries_are_never_changed",
        "DROP INDEX once_a_round",
        "PRAGMA user_version = 0",
        "UPDATE about SET value = x'00ff' WHERE key = 'salt'",
        "UPDATE tallies SET terms = x'00ff'",
    ],
)
def test_a_ledger_without_its_guards_or_with_other_types_is_refused(
    ledger: Path, edit: str
) -> None:
    with sqlite3.connect(ledger) as outside:
        outside.execute(edit)
    outside.close()
    with pytest.raises(LedgerCorruptError):
        Ledger.open(ledger)


def test_an_index_that_forgot_a_coin_is_found_before_the_coin_is_flipped_again(
    ledger: Path,
) -> None:
    with sqlite3.connect(ledger) as outside:
        outside.execute("PRAGMA writable_schema = ON")
        (page,) = outside.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'once_a_round'"
        ).fetchone()
        (size,) = outside.execute("PRAGMA page_size").fetchone()
    outside.close()
    content = bytearray(ledger.read_bytes())
    start = (page - 1) * size
    cells = int.from_bytes(content[start + 3 : start + 5], "big")
    content[start + 3 : start + 5] = (cells - 1).to_bytes(2, "big")  # the last entry is left out
    ledger.write_bytes(bytes(content))
    with pytest.raises(LedgerCorruptError):
        Ledger.open(ledger)


@pytest.mark.parametrize(
    "extreme", [{"p": 1e-300}, {"q": 1e-300}, {"noise_multiplier": 1e-6}, {"noise_multiplier": 1e6}]
)
def test_terms_that_would_take_minutes_to_price_are_refused(extreme: dict[str, float]) -> None:
    fields = {**TERMS.to_fields(), "mode": "untrusted", "rounds": 1_000_000, **extreme}
    terms = Terms.from_fields(fields)
    with pytest.raises(ValueError, match="must lie in"):
        terms.round_cost(30)


def test_a_malformed_reply_counts_against_its_sender_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        flower_runtime,
        "pull_object",
        lambda superlink, _, request, *__: superlink.pull_object(request),
    )
    monkeypatch.setattr(flower_runtime, "exchange", exchange_in_process)
    runtime = _Runtime()
    broken = framed("RecordDict", [], b"this is no JSON")
    head = framed("Message", [object_id(broken)], b"")
    runtime.add(ASKED[0], ([object_id(head)], {object_id(one): one for one in (head, broken)}))
    honest = RecordDict({messages.ANSWER: ConfigRecord({"coins": [True]})})
    sound = make_message(metadata=_reply_metadata(ASKED[1]), content=honest)
    runtime.add(ASKED[1], _objects(sound))
    grid = PromptGrid(make_http_grid(runtime), poll_interval=0.0)
    with as_task():
        asked = [
            Message(RecordDict(), dst_node_id=node, message_type="query.x", ttl=60.0)
            for node in (EVIL, HONEST)
        ]
        found = list(grid.collect(grid.push(asked), 5.0))
    replies = {reply.metadata.src_node_id: reply for reply in found}
    assert replies[EVIL].has_error()
    assert not replies[HONEST].has_error()


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.UNTRUSTED])
def test_a_sum_that_no_honest_client_can_send_is_dropped(mode: Mode) -> None:
    terms = Terms.from_fields({**TERMS.to_fields(), "mode": str(mode), "scheme": None})
    limit = largest_norm(terms, 12, 15)
    total = RunningSum(terms, 15, {EVIL: 12, HONEST: 12})
    for node, size in ((EVIL, 3e38), (HONEST, 0.99 * limit)):
        vector = np.zeros(15, "<f4")
        vector[0] = size
        content = RecordDict({messages.ANSWER: ConfigRecord({messages.SUM: vector.tobytes()})})
        reply = make_message(metadata=_reply_metadata(""), content=content)
        reply.metadata.__dict__["_src_node_id"] = node
        total.add(reply)
    assert total.dropped == {EVIL}
    assert total.answered == {HONEST}
