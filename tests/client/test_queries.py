"""A client that is asked for an evaluation: allowed, charged, clipped, hidden like a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client import gradient_sums
from coinflower.client.data import load_local_data
from coinflower.client.participant import UnansweredError
from coinflower.learning import build_model, load_parameters
from coinflower.protocol.messages import vector_from_bytes
from coinflower.protocol.modes import PRIVATE_MODES, Mode
from coinflower.protocol.policy import Refusal, load_policy
from coinflower.protocol.query import Query, QueryKind
from coinflower.protocol.terms import NO_MODEL
from coinflower.protocol.unit import Unit
from tests.support import tables
from tests.support.participants import LENGTH, Make, Recorder, answer, enrolled, refused

ACCURACY = Query(kind=QueryKind.EVALUATION, metrics=("accuracy",))
BOTH = Query(kind=QueryKind.EVALUATION, metrics=("accuracy", "loss"), largest_loss=5.0)


SEXES = Query(kind=QueryKind.STATISTICS, histograms=("sex",))


def statistical(owner: Any, make_terms: Make, **changes: Any) -> Any:
    """Give the owner a table and return terms that ask for statistics of it."""
    folder = owner.policy.parent
    schema = tables.write_schema(folder / "schema.toml")
    tables.write_ward(folder / "ward.csv", tables.ward_rows(30))
    owner.change(data="ward.csv", schema="schema.toml", queries=["statistics"])
    fields = {"schema": changes.pop("schema", schema), "model": NO_MODEL, "classes": 1, "q": 1.0}
    query = Query(kind=QueryKind.STATISTICS, **changes)
    return make_terms(Mode.LOCAL_ONLY, query=query, **fields)


@pytest.fixture
def willing(owner: Any) -> Any:
    """An owner who allows evaluations."""
    owner.change(queries=["evaluation"])
    return owner


def logits_of(owner: Any, weights: bytes) -> tuple[Any, Any]:
    data = load_local_data(load_policy(owner.policy))
    model = build_model("digits", classes=10)
    load_parameters(model, vector_from_bytes(weights, LENGTH))
    inputs, targets = data.batch(slice(None))
    with torch.no_grad():
        return model(*inputs), targets


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_nobody_answers_a_query_unless_the_policy_lists_it(
    owner: Any, make_terms: Make, mode: Mode
) -> None:
    terms = make_terms(mode, query=ACCURACY)
    participant = owner.open()
    assert refused(lambda: participant.enrol(terms)) is Refusal.QUERY
    owner.change(queries=["statistics"])
    assert refused(lambda: owner.open().enrol(terms)) is Refusal.QUERY
    assert owner.entries() == []


def test_a_policy_that_took_a_query_back_stops_it(
    willing: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms(query=ACCURACY)
    enrolled(willing.open(), terms).ledger.close()
    willing.change(queries=[])
    participant = willing.open()
    assert refused(lambda: participant.gradient_sum(terms, 1, weights)) is Refusal.QUERY
    assert willing.entries("charge") == []


def test_an_evaluation_is_the_sum_over_records_of_right_and_wrong(
    willing: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms(Mode.LOCAL_ONLY, q=1.0, query=ACCURACY)
    told = enrolled(willing.open(), terms).gradient_sum(terms, 1, weights)
    logits, targets = logits_of(willing, weights)
    right = int((logits.argmax(1) == targets).sum())
    assert told.tolist() == pytest.approx([right, len(targets) - right])


def test_a_person_counts_once_however_many_rows_it_has(
    willing: Any, make_terms: Make, weights: bytes
) -> None:
    with np.load(willing.policy.with_suffix(".npz")) as archive:
        arrays = dict(archive)
    persons = np.array([1] * 20 + [2] * 10)
    np.savez(willing.policy.parent / "people.npz", persons_train=persons, **arrays)
    willing.change(data="people.npz", unit=Unit.PERSON)
    terms = make_terms(Mode.LOCAL_ONLY, q=1.0, query=ACCURACY, unit=Unit.PERSON)
    told = enrolled(willing.open(), terms).gradient_sum(terms, 1, weights)
    logits, targets = logits_of(willing, weights)
    right = (logits.argmax(1) == targets).numpy()
    assert told[0] == pytest.approx(right[:20].mean() + right[20:].mean())
    assert told.sum() == pytest.approx(2)


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_an_evaluation_is_charged_before_anything_leaves_and_answered_once(
    willing: Any, make_terms: Make, weights: bytes, mode: Mode
) -> None:
    terms = make_terms(mode, query=BOTH)
    participant = enrolled(willing.open_with(True), terms)
    answer(participant, terms, 1, weights)
    (charge,) = willing.entries("charge")
    assert charge.experiment == terms.ledger_key
    assert '"kind": "evaluation"' in willing.entries("commit")[0].terms
    with pytest.raises(UnansweredError, match="answered before"):
        answer(participant, terms, 1, weights)
    assert len(willing.entries("charge")) == 1


def test_an_evaluation_and_its_training_are_charged_to_one_budget(
    willing: Any, make_terms: Make
) -> None:
    training, evaluation = make_terms(), make_terms(query=ACCURACY)
    participant = enrolled(enrolled(willing.open(), training), evaluation)
    both = participant.ledger.reserved_epsilon(1e-5)
    participant.ledger.close()
    willing.change(budget={"epsilon": both * 0.999, "delta": 1e-5})
    willing.ledger.unlink()
    Ledger.create(willing.ledger, "ward 7").close()
    participant = enrolled(willing.open(), training)
    assert refused(lambda: participant.enrol(evaluation)) is Refusal.BUDGET


@pytest.mark.parametrize("mode", [Mode.UNTRUSTED, Mode.COVERED, Mode.MASKED])
def test_answers_have_one_size_and_take_the_same_work_whatever_the_coin(
    willing: Any, make_terms: Make, weights: bytes, mode: Mode
) -> None:
    sizes, samples = set(), []
    terms = make_terms(mode, query=BOTH)
    for coin in (True, False):
        recorder = Recorder()
        participant = enrolled(willing.open_with(coin, randomness=recorder), terms)
        told = answer(participant, terms, 1 + coin, weights)
        sizes.add(tuple(map(len, told)) if isinstance(told, tuple) else len(told))  # type: ignore[arg-type]
        samples.append([call[0] for call in recorder.calls])
        participant.ledger.close()
    assert len(sizes) == 1
    assert samples[0] == samples[1]


def test_noise_hides_an_answer_as_it_hides_a_gradient(
    willing: Any, make_terms: Make, weights: bytes
) -> None:
    recorder = Recorder()
    terms = make_terms(query=BOTH, clip_norm=0.5)
    enrolled(willing.open_with(True, randomness=recorder), terms).gradient_sum(terms, 1, weights)
    assert ("noise", 4, 0.5 * terms.noise_multiplier) in recorder.calls


@pytest.mark.parametrize("query", [BOTH, ACCURACY])
def test_no_model_makes_a_sum_longer_than_its_records(
    willing: Any, make_terms: Make, query: Query
) -> None:
    """As a lying server would: with weights that overflow, or that tie all classes."""
    for place, value in enumerate((0.0, 3e38, -3e38, 1e-40)):
        weights = np.full(LENGTH, value, np.float32).tobytes()
        terms = make_terms(Mode.LOCAL_ONLY, q=1.0, query=query, experiment=f"x{place}")
        told = enrolled(willing.open(), terms).gradient_sum(terms, 1, weights)
        assert np.isfinite(told).all()
        assert np.linalg.norm(told) <= 30 * (1 + 1e-6)


def test_a_record_on_which_the_model_fails_counts_as_zero(
    willing: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gradient_sums.Evaluation.sum_over
    logits, targets = logits_of(willing, weights)
    data = load_local_data(load_policy(willing.policy))
    peculiar = data.batch(slice(7, 8))[0][0]

    def failing(self: Any, model: Any, inputs: Any, *rest: Any) -> Any:
        if any(torch.equal(one, peculiar[0]) for one in inputs[0]):
            raise RuntimeError("patient 7 is peculiar")
        return whole(self, model, inputs, *rest)

    monkeypatch.setattr(gradient_sums.Evaluation, "sum_over", failing)
    terms = make_terms(Mode.LOCAL_ONLY, q=1.0, query=ACCURACY)
    told = enrolled(willing.open(), terms).gradient_sum(terms, 1, weights)
    right = (logits.argmax(1) == targets).numpy()
    right = np.delete(right, 7)
    assert told.tolist() == pytest.approx([right.sum(), 29 - right.sum()])


def test_a_metric_that_the_task_does_not_have_is_refused_and_nothing_reserved(
    willing: Any, make_terms: Make
) -> None:
    for metric in ("auc", "rmse", "mae", "loss"):  # loss: without a largest one
        terms = make_terms(query=Query(kind=QueryKind.EVALUATION, metrics=(metric,)))
        assert refused(lambda terms=terms: willing.open().enrol(terms)) is Refusal.QUERY
    assert willing.entries() == []


def test_statistics_are_sums_over_the_rows_of_a_table(owner: Any, make_terms: Make) -> None:
    terms = statistical(owner, make_terms, histograms=("sex",))
    told = enrolled(owner.open(), terms).gradient_sum(terms, 1, b"anything")
    assert told.sum() == pytest.approx(30)
    assert (told >= 0).all()
    assert [entry.experiment for entry in owner.entries("charge")] == [terms.ledger_key]


def test_statistics_of_columns_that_the_schema_does_not_list_are_refused(
    owner: Any, make_terms: Make
) -> None:
    for fields in ({"means": ("sex",)}, {"means": ("name",)}, {"histograms": ("patient",)}):
        terms = statistical(owner, make_terms, **fields)
        assert refused(lambda terms=terms: owner.open().enrol(terms)) is Refusal.QUERY
    assert owner.entries() == []


def test_statistics_by_another_schema_or_of_no_table_are_refused(
    owner: Any, make_terms: Make
) -> None:
    owner.change(queries=["statistics"])
    images = {"query": SEXES, "model": NO_MODEL, "classes": 1}
    assert refused(lambda: owner.open().enrol(make_terms(**images))) is Refusal.SCHEMA
    terms = statistical(owner, make_terms, histograms=("sex",), schema="0" * 64)
    assert refused(lambda: owner.open().enrol(terms)) is Refusal.SCHEMA


def test_a_policy_for_evaluations_allows_no_statistics(owner: Any, make_terms: Make) -> None:
    terms = statistical(owner, make_terms, histograms=("sex",))
    owner.change(queries=["evaluation"])
    assert refused(lambda: owner.open().enrol(terms)) is Refusal.QUERY
