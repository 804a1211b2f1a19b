"""The three Flower handlers: what they answer, and how little a failure tells."""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.app.message import make_message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coinflower.accounting.ledger.echo import NO_TOKEN, TOKEN_BYTES
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.client.app import (
    SIMULATED_POLICIES,
    _answer,
    app,
    forget_participants,
    participant_of,
)
from coinflower.client.participant import Participant
from coinflower.protocol import messages
from coinflower.protocol.messages import FAILURE_REASON, vector_from_bytes
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from coinflower.protocol.terms import Terms

Make = Callable[..., Terms]
LENGTH = 64 * 32 + 32 + 32 * 10 + 10
KINDS = ("query.enrol", "query.invite", "train.gradient")


@pytest.fixture(autouse=True)
def _no_participants() -> Iterator[None]:
    yield
    forget_participants()


def ask(kind: str, content: RecordDict) -> Message:
    metadata = Metadata(
        run_id=1,
        message_id="m1",
        src_node_id=1,
        dst_node_id=7,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=60,
        message_type=kind,
    )
    return make_message(metadata=metadata, content=content)


def question(terms: Terms | str, **fields: Any) -> RecordDict:
    text = terms if isinstance(terms, str) else terms.to_json()
    return RecordDict({messages.ASK: ConfigRecord({messages.TERMS: text, **fields})})


def context_of(owner: Any, **run_config: Any) -> Context:
    return Context(
        run_id=1,
        node_id=7,
        node_config={"policy": str(owner.policy)},
        state=RecordDict(),
        run_config=run_config,
    )


def call(owner: Any, kind: str, content: RecordDict) -> Message:
    return app(ask(kind, content), context_of(owner))


def answer_of(reply: Message) -> dict[str, Any]:
    """The one record of a reply but salt and echo, after checking that they are there."""
    assert not reply.has_error()
    assert list(reply.content) == [messages.ANSWER]
    assert not reply.content.metric_records
    assert not reply.content.array_records
    answer: dict[str, Any] = dict(reply.content.config_records[messages.ANSWER])
    assert len(answer.pop(messages.SALT)) >= messages.SALT_BYTES
    assert len(answer.pop(messages.ECHO)) == TOKEN_BYTES
    return answer


def fails(owner: Any, kind: str, content: RecordDict) -> None:
    """Checks that the message fails and that nobody learns why."""
    with pytest.raises(RuntimeError) as caught:
        call(owner, kind, content)
    error = caught.value
    assert type(error) is RuntimeError
    assert error.args == (FAILURE_REASON,)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert "During handling" not in "".join(traceback.format_exception(error))


def test_enrolment_is_answered_by_yes_and_the_declared_size(owner: Any, make_terms: Make) -> None:
    reply = call(owner, "query.enrol", question(make_terms()))
    assert answer_of(reply) == {"enrolled": True, "declared-size": 30, "reason": ""}
    assert reply.metadata.reply_to_message_id == "m1"


def test_a_refusal_is_its_sentence_and_nothing_else(owner: Any, make_terms: Make) -> None:
    reply = call(owner, "query.enrol", question(make_terms(clip_norm=1.25)))
    expected = {"enrolled": False, "declared-size": 0, "reason": Refusal.CLIPPING.value}
    assert answer_of(reply) == expected


def test_an_exhausted_budget_is_refused_without_figures(owner: Any, make_terms: Make) -> None:
    owner.change(budget={"epsilon": 0.125, "delta": 1e-5})
    reply = call(owner, "query.enrol", question(make_terms()))
    assert answer_of(reply)["reason"] == Refusal.BUDGET.value
    assert owner.entries() == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no json", "{" * 9000, "x" * 20_000, "\x00"])
def test_terms_that_make_no_sense_are_refused(owner: Any, text: str) -> None:
    reply = call(owner, "query.enrol", question(text))
    expected = {"enrolled": False, "declared-size": 0, "reason": Refusal.TERMS.value}
    assert answer_of(reply) == expected


HOSTILE = f"x\n2026-01-01 00:00:00,000 INFO all is well\x1b[2J\x9b31m\u202e{'y' * 3000}"


@pytest.mark.parametrize("field", ["experiment", "mode", "model", "p", "scheme", HOSTILE])
def test_a_lying_servers_text_is_one_printable_line_of_the_log(
    owner: Any, make_terms: Make, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    text = json.dumps({**make_terms().to_fields(), field: HOSTILE}, ensure_ascii=False)
    assert not answer_of(call(owner, "query.enrol", question(text)))[messages.ENROLLED]
    with pytest.raises(RuntimeError):
        call(owner, "query.invite", question(text, round=1, count=1))
    assert len(caplog.messages) == 2
    for line in caplog.messages:
        assert line.isprintable()
        assert len(line) < 1000


def test_a_damaged_ledger_is_a_refusal_that_says_so(owner: Any, make_terms: Make) -> None:
    owner.ledger.write_bytes(b"not a ledger at all" * 100)
    reply = call(owner, "query.enrol", question(make_terms()))
    expected = {"enrolled": False, "declared-size": 0, "reason": Refusal.LEDGER.value}
    assert answer_of(reply) == expected


def test_an_invitation_is_answered_by_one_coin_a_round(owner: Any, make_terms: Make) -> None:
    terms = make_terms(Mode.TRUSTED)
    call(owner, "query.enrol", question(terms))
    answer = answer_of(call(owner, "query.invite", question(terms, round=2, count=3)))
    assert list(answer) == ["coins"]
    charges = owner.entries("charge")
    assert answer["coins"] == [entry.coin for entry in charges]
    assert [entry.round for entry in charges] == [2, 3, 4]


def test_a_gradient_is_answered_by_its_bytes_alone(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    call(owner, "query.enrol", question(make_terms()))
    answers = [
        answer_of(call(owner, "train.gradient", question(make_terms(), round=r, weights=weights)))
        for r in (1, 2, 3)
    ]
    for answer in answers:
        assert list(answer) == ["sum"]
        assert np.isfinite(vector_from_bytes(answer["sum"], LENGTH)).all()
    assert len({answer["sum"] for answer in answers}) == 3


def test_untrusted_replies_have_one_size_whatever_the_coin(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms(experiment="sizes")
    call(owner, "query.enrol", question(terms))
    sizes = set()
    for round_ in range(1, 9):
        reply = call(owner, "train.gradient", question(terms, round=round_, weights=weights))
        sizes.add(len(reply.content.config_records[messages.ANSWER].deflate()))
    assert len(sizes) == 1


def test_the_same_answer_twice_has_no_hash_in_common(owner: Any, make_terms: Make) -> None:
    terms = make_terms(Mode.TRUSTED)
    asked = ask("query.invite", question(terms, round=1, count=1))
    replies = [call(owner, "query.enrol", question(terms)) for _ in range(2)]
    replies.append(app(asked, context_of(owner)))
    replies.append(_answer(asked, dict(answer_of(replies[-1]))))
    hashes = [name for reply in replies for name in get_all_nested_objects(reply)]
    assert len(hashes) == len(set(hashes)) == 12


def test_answers_to_enrolment_have_one_size_whatever_they_say(owner: Any, make_terms: Make) -> None:
    declared = [1, 127, 128, 2**40]
    asked = [make_terms(), make_terms(clip_norm=1.25), make_terms(q=0.75), "no terms"]
    replies = [call(owner, "query.enrol", question(terms)) for terms in asked]
    first = {**answer_of(replies[0]), messages.ECHO: NO_TOKEN}
    replies += [
        _answer(ask("query.enrol", RecordDict()), {**first, "declared-size": size})
        for size in declared
    ]
    assert len({answer_of(reply)["reason"] for reply in replies}) >= 3
    sizes = {
        tuple(len(part.deflate()) for part in get_all_nested_objects(reply.content).values())
        for reply in replies
    }
    assert len(sizes) == 1


def test_a_second_answer_is_refused_by_the_constant_sentence(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    content = question(make_terms(), round=1, weights=weights)
    call(owner, "query.enrol", question(make_terms()))
    call(owner, "train.gradient", content)
    fails(owner, "train.gradient", content)
    forget_participants()
    fails(owner, "train.gradient", content)


def test_untrusted_invitations_fail_and_charge_nothing(owner: Any, make_terms: Make) -> None:
    call(owner, "query.enrol", question(make_terms()))
    fails(owner, "query.invite", question(make_terms(), round=1, count=1))
    assert owner.entries("charge") == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"round": 1},
        {"count": 1},
        {"round": 1, "count": 0},
        {"round": 1, "count": 5},
        {"round": 1, "count": -1},
        {"round": 0, "count": 1},
        {"round": 8, "count": 2},
        {"round": 2**62, "count": 1},
        {"round": 1.0, "count": 1},
        {"round": True, "count": True},
        {"round": "1", "count": "1"},
        {"round": [1], "count": 1},
        {"round": b"1", "count": 1},
    ],
)
def test_a_strange_invitation_fails_and_charges_nothing(
    owner: Any, make_terms: Make, fields: dict[str, Any]
) -> None:
    terms = make_terms(Mode.TRUSTED)
    call(owner, "query.enrol", question(terms))
    fails(owner, "query.invite", question(terms, **fields))
    assert owner.entries("charge") == []


@pytest.mark.parametrize(
    "fields",
    [
        {"round": 1},
        {"weights": b"x"},
        {"round": 1, "weights": b""},
        {"round": 1, "weights": bytes(4 * LENGTH - 1)},
        {"round": 1, "weights": "text"},
        {"round": 1, "weights": [0.0] * LENGTH},
        {"round": 1, "weights": np.full(LENGTH, np.nan, "<f4").tobytes()},
        {"round": 1.0, "weights": bytes(4 * LENGTH)},
        {"round": True, "weights": bytes(4 * LENGTH)},
        {"round": 0, "weights": bytes(4 * LENGTH)},
        {"round": 9, "weights": bytes(4 * LENGTH)},
    ],
)
def test_a_strange_model_fails_and_charges_nothing(
    owner: Any, make_terms: Make, fields: dict[str, Any]
) -> None:
    call(owner, "query.enrol", question(make_terms()))
    fails(owner, "train.gradient", question(make_terms(), **fields))
    assert owner.entries("charge") == []


STRANGE = {
    "nothing": RecordDict(),
    "another record": RecordDict({"other": ConfigRecord({"terms": "{}"})}),
    "metrics for the question": RecordDict({messages.ASK: MetricRecord({"round": 1})}),
    "arrays for the question": RecordDict(
        {messages.ASK: ArrayRecord({"weights": Array(np.zeros(3, np.float32))})}
    ),
    "no terms": RecordDict({messages.ASK: ConfigRecord({"round": 1, "count": 1})}),
}


@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("kind", KINDS)
def test_missing_or_wrong_records_fail_alike(owner: Any, kind: str, content: RecordDict) -> None:
    fails(owner, kind, content)
    assert owner.entries() == []


scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.lists(st.integers(0, 9), max_size=3),
)


@given(
    kind=st.sampled_from(KINDS),
    fields=st.dictionaries(
        st.sampled_from(["terms", "round", "count", "weights", "zzz"]), scalars, max_size=5
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_junk_is_answered_by_a_refusal_or_the_constant_sentence(
    owner: Any, kind: str, fields: dict[str, Any]
) -> None:
    content = RecordDict({messages.ASK: ConfigRecord(fields)})
    if kind == "query.enrol" and "terms" in fields:
        assert answer_of(call(owner, kind, content))["reason"] == Refusal.TERMS.value
    else:
        fails(owner, kind, content)
    assert owner.entries() == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [ValueError, KeyError, LedgerError, MemoryError, OSError])
def test_no_text_of_any_failure_leaves(
    owner: Any,
    make_terms: Make,
    weights: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    error: type[Exception],
) -> None:
    secret = "the value of patient 17 is 42"

    def fail(*_: object) -> Any:
        raise error(secret)

    for name in ("enrol", "flip", "gradient_sum"):
        monkeypatch.setattr(Participant, name, fail)
    content = question(make_terms(), round=1, count=1, weights=weights)
    with caplog.at_level(logging.WARNING, "coinflower.client"):
        if kind == "query.enrol" and error is LedgerError:
            assert secret not in str(answer_of(call(owner, kind, content)))
        else:
            fails(owner, kind, content)
    assert secret in caplog.text


def test_a_policy_or_data_out_of_order_fails_like_anything_else(
    owner: Any, make_terms: Make
) -> None:
    owner.change(declared_size=10)
    fails(owner, "query.enrol", question(make_terms()))
    owner.change(declared_size=30, budgett=1)
    fails(owner, "query.enrol", question(make_terms()))


def test_the_policy_comes_from_the_node_and_never_from_the_wire(
    owner: Any, make_terms: Make, tmp_path: Any
) -> None:
    lax = tmp_path / "lax.toml"
    lax.write_text(owner.policy.read_text())
    owner.change(largest_q=0.4)
    content = question(make_terms(), policy=str(lax))
    reply = app(ask("query.enrol", content), context_of(owner, policy=str(lax)))
    assert answer_of(reply)["reason"] == Refusal.SAMPLING.value


def test_a_node_without_a_policy_answers_nothing_even_if_the_run_names_one(
    owner: Any, make_terms: Make
) -> None:
    context = context_of(owner, policy=str(owner.policy))
    context.node_config.clear()
    with pytest.raises(RuntimeError, match=FAILURE_REASON):
        app(ask("query.enrol", question(make_terms())), context)
    assert owner.entries() == []


def test_a_simulated_node_finds_its_policy_in_the_folder_of_this_machine(
    owner: Any, make_terms: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.policy.rename(owner.policy.with_name("client-3.toml"))
    monkeypatch.setenv(SIMULATED_POLICIES, str(owner.policy.parent))
    context = context_of(owner)
    context.node_config = {"partition-id": 3, "num-partitions": 5}
    reply = app(ask("query.enrol", question(make_terms())), context)
    assert answer_of(reply)["enrolled"] is True


def test_a_node_keeps_its_participant_and_another_policy_has_another(
    owner: Any, tmp_path: Any
) -> None:
    context = context_of(owner)
    assert participant_of(context) is participant_of(context_of(owner))
    other = tmp_path / "other.toml"
    other.write_text(owner.policy.read_text())
    context.node_config["policy"] = str(other)
    assert participant_of(context) is not participant_of(context_of(owner))


def test_nothing_is_kept_in_flowers_own_memory(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    context = context_of(owner)
    app(ask("query.enrol", question(make_terms())), context)
    app(ask("train.gradient", question(make_terms(), round=1, weights=weights)), context)
    assert not context.state
