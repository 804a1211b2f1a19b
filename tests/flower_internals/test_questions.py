"""The SuperLink's state hands out questions as Flower's does, and looks through a node's own."""

from __future__ import annotations

import pytest
from flwr.app import Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.date import now
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.superlink.federation import NoOpFederationManager

from coinflower.flower_internals.superlink.questions import OrderedLinkState


def _make(kind: type[InMemoryLinkState]) -> InMemoryLinkState:
    return kind(NoOpFederationManager(), InMemoryObjectStore())


def _run(state: InMemoryLinkState) -> int:
    return state.create_run(
        None, None, None, {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP
    )


def _nodes(state: InMemoryLinkState, count: int) -> list[int]:
    nodes = [state.create_node("", "", b"%d" % index, 0) for index in range(count)]
    for node in nodes:
        state.activate_node(node, 30.0)
    return nodes


def _ask(state: InMemoryLinkState, run: int, node: int, name: str) -> None:
    metadata = Metadata(
        run, name, SUPERLINK_NODE_ID, node, "", name, now().timestamp(), 60.0, "query"
    )
    assert state.store_message_ins(make_message(metadata=metadata, content=RecordDict())) == name


def _let_expire(state: InMemoryLinkState, name: str) -> None:
    state.message_ins_store[name].metadata.__dict__["_created_at"] -= 120.0


def _names(questions: list[Message]) -> list[str]:
    return [question.metadata.message_id for question in questions]


@pytest.fixture(params=[InMemoryLinkState, OrderedLinkState])
def state(request: pytest.FixtureRequest) -> InMemoryLinkState:
    """Flower's state and ours: what holds for the one holds for the other."""
    return _make(request.param)


def test_a_node_gets_its_own_questions_in_order_and_each_once(state: InMemoryLinkState) -> None:
    run, (one, other) = _run(state), _nodes(state, 2)
    for name, node in (("a", one), ("b", other), ("c", one), ("d", one)):
        _ask(state, run, node, name)
    assert _names(state.get_message_ins(one, 1)) == ["a"]
    assert _names(state.get_message_ins(one, None)) == ["c", "d"]
    assert _names(state.get_message_ins(one, None)) == []
    assert _names(state.get_message_ins(other, 1)) == ["b"]


def test_a_question_that_is_stored_twice_is_asked_once(state: InMemoryLinkState) -> None:
    run, (node,) = _run(state), _nodes(state, 1)
    _ask(state, run, node, "a")
    _ask(state, run, node, "a")
    assert _names(state.get_message_ins(node, None)) == ["a"]
    _ask(state, run, node, "a")
    assert _names(state.get_message_ins(node, None)) == []


def test_who_wants_the_questions_of_one_run_leaves_those_of_others(
    state: InMemoryLinkState,
) -> None:
    (first, second), (node,) = (_run(state), _run(state)), _nodes(state, 1)
    for name, run in (("a", first), ("b", second), ("c", first)):
        _ask(state, run, node, name)
    assert _names(state.get_message_ins(node, 1, run_id=second)) == ["b"]
    assert _names(state.get_message_ins(node, None, run_id=second)) == []
    assert _names(state.get_message_ins(node, None)) == ["a", "c"]


def test_a_question_that_expired_or_was_deleted_is_not_asked(state: InMemoryLinkState) -> None:
    run, (node,) = _run(state), _nodes(state, 1)
    _ask(state, run, node, "expired")
    _ask(state, run, node, "deleted")
    _ask(state, run, node, "a")
    _let_expire(state, "expired")
    state.delete_messages({"deleted"})
    assert _names(state.get_message_ins(node, None)) == ["a"]
    assert state.num_message_ins() == 1


def test_questions_that_nobody_looks_for_are_deleted_once_they_expired(
    state: InMemoryLinkState,
) -> None:
    run, (dead, alive) = _run(state), _nodes(state, 2)
    for name in range(20):
        _ask(state, run, dead, f"{name}")
        _let_expire(state, f"{name}")
    for _ in range(5):
        state.get_message_ins(alive, 1)
    assert state.num_message_ins() == 0


def test_a_look_does_not_check_what_other_nodes_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    state = _make(OrderedLinkState)
    run, nodes = _run(state), _nodes(state, 200)
    for node in nodes:
        _ask(state, run, node, f"question to {node}")
    checked: list[int] = []
    check = state._check_stored_messages

    def counted(names: set[str], run_id: int | None = None) -> None:
        checked.append(len(names))
        check(names, run_id)

    monkeypatch.setattr(state, "_check_stored_messages", counted)
    for node in nodes:
        assert len(state.get_message_ins(node, 1)) == 1
    assert max(checked) < 10
