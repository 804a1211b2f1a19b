"""The three Flower handlers: what they answer, and to whom."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    RecordDict,
)
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import coinflower.client.app
from coinflower.accounting.ledger.echo import NO_TOKEN
from coinflower.client.app import SIMULATED_POLICIES, _answer, make_app
from coinflower.client.gradient_sums import GradientSums
from coinflower.flower_internals.long_records import LongRecord
from coinflower.protocol import messages
from coinflower.protocol.messages import FAILURE_REASON, vector_from_bytes
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal
from tests.support.participants import (
    LENGTH,
    Make,
    answer_of,
    app,
    ask,
    call,
    context_of,
    owners,
    question,
)


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
    assert len({bytes(answer["sum"]) for answer in answers}) == 3


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


def test_an_app_of_one_participant_asks_no_configuration(owner: Any, make_terms: Make) -> None:
    participant = owner.open()
    context = context_of(owner)
    context.node_config.clear()
    reply = make_app(participant)(ask("query.enrol", question(make_terms())), context)
    assert answer_of(reply)["enrolled"] is True
    assert participant.current == make_terms()


def test_an_app_that_ray_sends_to_a_worker_meets_the_owners_of_that_process() -> None:
    owners_there = pickle.loads(pickle.dumps(coinflower.client.app.owners_of_this_process.of))
    assert owners_there == coinflower.client.app.owners_of_this_process.of
    cloudpickle = pytest.importorskip("ray.cloudpickle", reason="needs the extra 'simulation'")
    assert pickle.loads(cloudpickle.dumps(coinflower.client.app.app)) is not None
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(owners.of)


def test_a_node_keeps_its_participant_and_another_policy_has_another(
    owner: Any, tmp_path: Any
) -> None:
    context = context_of(owner)
    assert owners.of(context) is owners.of(context_of(owner))
    other = tmp_path / "other.toml"
    other.write_text(owner.policy.read_text())
    context.node_config["policy"] = str(other)
    assert owners.of(context) is not owners.of(context_of(owner))


def test_nothing_is_kept_in_flowers_own_memory(
    owner: Any, make_terms: Make, weights: bytes
) -> None:
    context = context_of(owner)
    app(ask("query.enrol", question(make_terms())), context)
    app(ask("train.gradient", question(make_terms(), round=1, weights=weights)), context)
    assert not context.state


class Memory(bytearray):
    """Memory of which one can see when it is freed."""


def test_the_model_that_came_is_freed_before_a_gradient_is_computed(
    owner: Any, make_terms: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make_terms(Mode.UNTRUSTED)
    call(owner, "query.enrol", question(terms))
    memory = Memory(4 * LENGTH)
    content = question(terms, round=1)
    fields = dict(content.pop(messages.ASK))
    content[messages.ASK] = LongRecord(fields, messages.WEIGHTS, memory)
    there, freed, sampled_sum = [], weakref.ref(memory), GradientSums.sampled_sum

    def watched(sums: GradientSums, *arguments: Any) -> Any:
        there.append(freed() is not None)
        return sampled_sum(sums, *arguments)

    monkeypatch.setattr(GradientSums, "sampled_sum", watched)
    asked = [ask("train.gradient", content)]
    del memory, content
    gc.disable()
    try:
        reply = app(asked.pop(), context_of(owner))
    finally:
        gc.enable()
    assert messages.SUM in answer_of(reply)
    assert there == [False]
