"""What makes no sense, or fails, is refused by a sentence that tells nothing."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    MetricRecord,
    RecordDict,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coinflower.accounting.ledger.errors import LedgerError
from coinflower.client.participant import Participant
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from tests.support.participants import KINDS, LENGTH, Make, answer_of, call, fails, owners, question


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


def test_a_second_answer_is_refused_by_the_constant_sentence(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    content = question(make_terms(), round=1, weights=weights)
    call(owner, "query.enrol", question(make_terms()))
    call(owner, "train.gradient", content)
    fails(owner, "train.gradient", content)
    owners.close()
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
