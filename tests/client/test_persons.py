"""A client that protects persons: samples, clips and counts them, and refuses other units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from coinflower.client import gradient_sums
from coinflower.client.data import load_local_data
from coinflower.learning import build_model, clipped_gradient_sum, load_parameters, to_tensor
from coinflower.protocol.messages import vector_from_bytes
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Refusal, load_policy
from coinflower.protocol.unit import Unit
from tests.support import tables
from tests.support.participants import LENGTH, Make, Recorder, enrolled, fail_on, refused

PERSONS = np.array([5, 5, 5, 5, 5, 5, -2, -2, -2, 7, *range(100, 120)])
COUNT = 23


def write_persons(owner: Any, persons: Any, name: str = "people.npz") -> None:
    """Give the owner's images to persons."""
    with np.load(owner.policy.with_suffix(".npz")) as archive:
        arrays = dict(archive)
    np.savez(owner.policy.parent / name, persons_train=persons, **arrays)
    owner.change(data=name)


@pytest.fixture
def clinic(owner: Any) -> Any:
    """An owner of thirty images of 23 persons."""
    write_persons(owner, PERSONS)
    owner.change(unit="person", declared_size=COUNT)
    return owner


def sum_over(
    owner: Any, weights: bytes, persons: npt.NDArray[np.int64], kept: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    data = load_local_data(load_policy(owner.policy))
    model = build_model("digits", classes=10)
    load_parameters(model, vector_from_bytes(weights, LENGTH))
    total = np.zeros(LENGTH, np.float32)
    for person in np.unique(persons[kept]):
        rows = np.flatnonzero(kept & (persons == person))
        gradient = sum(
            clipped_gradient_sum(
                model,
                to_tensor(data.inputs[[row]]),
                torch.from_numpy(data.targets[[row]]),
                np.inf,
            ).numpy()
            for row in rows
        ) / len(rows)
        total += gradient * min(1, 1 / np.linalg.norm(gradient))
    return total


def test_it_answers_with_the_sum_over_persons(
    clinic: Any, make_terms: Make, weights: bytes
) -> None:
    terms = make_terms(Mode.TRUSTED, q=1.0, unit=Unit.PERSON)
    participant = enrolled(clinic.open_with(True), terms)
    total = participant.gradient_sum(terms, 1, weights)
    everybody = np.ones(30, dtype=bool)
    np.testing.assert_allclose(total, sum_over(clinic, weights, PERSONS, everybody), atol=1e-5)


@pytest.mark.parametrize(
    "ids",
    [
        PERSONS.astype(np.int8),
        PERSONS.astype(np.uint64),
        np.array([f"patient {person}" for person in PERSONS]),
        np.array([f"patient {person}" for person in PERSONS]).astype("S"),
    ],
    ids=["small", "huge", "text", "bytes"],
)
def test_whatever_ids_look_like_they_make_the_same_persons(
    clinic: Any, make_terms: Make, weights: bytes, ids: Any
) -> None:
    write_persons(clinic, ids, "other.npz")
    terms = make_terms(Mode.TRUSTED, q=1.0, unit=Unit.PERSON)
    total = enrolled(clinic.open_with(True), terms).gradient_sum(terms, 1, weights)
    everybody = np.ones(30, dtype=bool)
    np.testing.assert_allclose(total, sum_over(clinic, weights, PERSONS, everybody), atol=1e-5)


def test_persons_are_sampled_and_come_with_all_their_rows(
    clinic: Any, make_terms: Make, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms, recorder = make_terms(Mode.TRUSTED, unit=Unit.PERSON, rounds=40), Recorder()
    participant = enrolled(clinic.open_with(True, randomness=recorder), terms)
    seen: list[npt.NDArray[np.int64]] = []

    def counted(*given: Any, persons: torch.Tensor, **more: Any) -> torch.Tensor:
        seen.append(persons.numpy())
        return clipped_gradient_sum(*given, persons=persons, **more)

    monkeypatch.setattr(gradient_sums, "clipped_gradient_sum", counted)
    for round_ in range(1, 41):
        participant.gradient_sum(terms, round_, weights)
    assert recorder.calls == [("sample", COUNT, 0.5)] * 40
    sizes = np.unique(PERSONS, return_counts=True)[1]
    for persons, drawn in zip(seen, recorder.batches, strict=True):
        found, rows = np.unique(persons, return_counts=True)
        assert len(found) == drawn
        np.testing.assert_array_equal(rows, sizes[found])


def test_nobody_in_the_sample_gives_zeros(clinic: Any, make_terms: Make, weights: bytes) -> None:
    class Nobody(Recorder):
        def sample_indices(self, n: int, q: float) -> npt.NDArray[np.int64]:
            return super().sample_indices(n, q)[:0]

    terms = make_terms(Mode.TRUSTED, unit=Unit.PERSON)
    participant = enrolled(clinic.open_with(True, randomness=Nobody()), terms)
    assert not participant.gradient_sum(terms, 1, weights).any()


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.COVERED, Mode.LOCAL_ONLY])
def test_a_row_whose_gradient_fails_takes_its_person_and_nobody_else(
    clinic: Any, make_terms: Make, weights: bytes, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make_terms(mode, q=1.0, unit=Unit.PERSON)
    participant = enrolled(clinic.open_with(True), terms)
    peculiar = load_local_data(load_policy(clinic.policy)).inputs[[4, 17]]
    monkeypatch.setattr(gradient_sums, "clipped_gradient_sum", fail_on(peculiar))
    total = participant.gradient_sum(terms, 1, weights)
    others = (PERSONS[4] != PERSONS) & (PERSONS[17] != PERSONS)
    np.testing.assert_allclose(total, sum_over(clinic, weights, PERSONS, others), atol=1e-5)


def test_a_row_of_a_class_that_the_model_does_not_know_leaves_its_person_the_others(
    clinic: Any, make_terms: Make
) -> None:
    model = build_model("digits", classes=4)
    weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    terms = make_terms(Mode.TRUSTED, q=1.0, unit=Unit.PERSON, classes=4)
    participant = enrolled(clinic.open_with(True), terms)
    total = participant.gradient_sum(terms, 1, weights.tobytes())
    known = np.arange(30) % 10 < 4
    inputs, targets = load_local_data(load_policy(clinic.policy)).batch(known)
    persons = torch.from_numpy(PERSONS[known])
    load_parameters(model, weights)
    expected = clipped_gradient_sum(model, inputs, targets, 1.0, persons=persons)
    np.testing.assert_allclose(total, expected, atol=1e-6)


def test_the_declared_size_counts_persons(clinic: Any, make_terms: Make) -> None:
    assert clinic.open().enrol(make_terms(unit=Unit.PERSON)) == COUNT
    clinic.change(declared_size=COUNT - 1)
    with pytest.raises(ValueError, match="has 23 persons, more than the declared 22"):
        clinic.open()


def test_the_price_is_that_of_so_many_persons(clinic: Any, make_terms: Make) -> None:
    terms = make_terms(unit=Unit.PERSON)
    participant = enrolled(clinic.open(), terms)
    (tally,) = participant.ledger.tallies()
    assert tally.terms == terms.round_cost(COUNT)


@pytest.mark.parametrize(("own", "asked"), [("person", "record"), ("record", "person")])
def test_terms_of_another_unit_are_refused_and_nothing_is_charged(
    clinic: Any, make_terms: Make, own: str, asked: str
) -> None:
    clinic.change(unit=own, declared_size=30)
    assert refused(lambda: clinic.open().enrol(make_terms(unit=Unit(asked)))) is Refusal.UNIT
    assert clinic.entries() == []


def test_data_that_does_not_say_whose_its_rows_are_is_refused_at_once(owner: Any) -> None:
    owner.change(unit="person")
    with pytest.raises(ValueError, match=r"unit = person .* does not say whose its rows are"):
        owner.open()


def test_rows_of_nobody_count_as_absent(clinic: Any, caplog: pytest.LogCaptureFixture) -> None:
    ids = np.array([f"patient {person}" for person in PERSONS])
    ids[[3, 12]] = ["", "  "]
    write_persons(clinic, ids, "other.npz")
    data = load_local_data(load_policy(clinic.policy))
    assert len(data) == 28
    assert "record 3 counts as absent: nobody knows whose it is" in caplog.text


def loaded_by_own_function() -> tuple[Any, Any, Any]:
    """Rows of three persons, one of them without an id, as a column of pandas has them."""
    return np.ones((5, 64)), [0, 1, 0, 1, 1], np.array(["a", 3, None, "a", 7.0], dtype=object)


def test_an_own_loader_gives_persons_too(owner: Any) -> None:
    loader = f"{__name__}:loaded_by_own_function"
    owner.change(data=loader, loaders=[loader], unit="person", declared_size=3)
    data = load_local_data(load_policy(owner.policy))
    assert data.persons is not None
    assert len(data) == 4
    assert len(np.unique(data.persons)) == 3
    assert data.persons[0] == data.persons[2]


def test_tables_and_mapped_files_give_persons_too(owner: Any) -> None:
    folder: Path = owner.policy.parent
    tables.write_ward(folder / "ward.csv", tables.ward_rows(31))
    tables.write_schema(folder / "schema.toml")
    owner.change(data="ward.csv", schema="schema.toml", unit="person", declared_size=11)
    assert len(load_local_data(load_policy(owner.policy))) == 31
    (folder / "mapped").mkdir()
    for name, array in (("x", np.ones((6, 4))), ("y", np.arange(6) % 2), ("persons", "aabbcc")):
        values = np.array(list(array)) if isinstance(array, str) else array
        np.save(folder / "mapped" / f"{name}.npy", values)
    owner.change(data="mapped", schema=None, declared_size=3)
    assert len(load_local_data(load_policy(owner.policy))) == 6


def test_of_a_person_with_very_many_rows_only_some_are_used(
    clinic: Any, make_terms: Make, weights: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    clinic.change(most_rows_per_person=2)
    data = load_local_data(load_policy(clinic.policy))
    assert data.persons is not None
    sizes = np.unique(data.persons, return_counts=True)[1]
    assert sorted(sizes.tolist()) == [1] * 21 + [2, 2]
    assert "5 rows are left out: most_rows_per_person = 2" in caplog.text
    terms = make_terms(Mode.TRUSTED, q=1.0, unit=Unit.PERSON)
    total = enrolled(clinic.open_with(True), terms).gradient_sum(terms, 1, weights)
    clinic.change(most_rows_per_person=None)
    kept = ~np.isin(np.arange(30), [2, 3, 4, 5, 8])
    np.testing.assert_allclose(total, sum_over(clinic, weights, PERSONS, kept), atol=1e-5)


def test_no_person_is_at_two_clients(clinic: Any) -> None:
    data = {}
    for how in ("equal", "dirichlet"):
        shares = []
        for index in range(4):
            clinic.change(share={"clients": 4, "index": index, "how": how})
            shares.append(load_local_data(load_policy(clinic.policy)))
        people = [set(share.persons.tolist()) for share in shares if share.persons is not None]
        assert sum(map(len, people)) == len(set().union(*people)) == COUNT
        assert sum(map(len, shares)) == 30
        data[how] = people
    assert {len(each) for each in data["equal"]} == {5, 6}
