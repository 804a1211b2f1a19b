"""Records with weights: the sum equals a naive loop's, and the clip norm holds all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coinflower.client.data import load_local_data
from coinflower.client.gradient_sums import GradientSums
from coinflower.client.model import ModelRules
from coinflower.experiments.simulator.batch_sums import Batch, BatchSums
from coinflower.learning import Records, build_model, load_data, make_task
from coinflower.learning.data.weights import LARGEST
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from coinflower.protocol.terms import Terms
from coinflower.protocol.unit import Unit
from tests.support import tables

CLIP_NORM = 0.5
ROWS, WIDTH, CLASSES = 24, 5, 3
PERSONS = np.repeat([7, 3, 9, 4], [1, 12, 4, 7])
WIDTHS = {"widths": [6]}


class Everybody:
    """Samples all there are."""

    def sample_indices(self, count: int, _: float) -> Any:
        return np.arange(count)


def records(**changes: Any) -> Records:
    rng = np.random.default_rng(1)
    fields: dict[str, Any] = {
        "inputs": rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
        "targets": rng.integers(0, CLASSES, ROWS),
        "persons": PERSONS,
        "weights": rng.choice([0, 0.01, 0.3, 1, 7, 900], ROWS).astype(np.float32),
    }
    return Records(**{**fields, **changes})


def terms(unit: Unit, task: str, clipping: str) -> Terms:
    return Terms(
        experiment="weights",
        mode=Mode.TRUSTED,
        p=0.5,
        q=1.0,
        clip_norm=CLIP_NORM,
        clipping=clipping,
        noise_multiplier=1.0,
        rounds=1,
        model="mlp",
        model_options=WIDTHS,
        row_shape=(WIDTH,),
        task=task,
        classes=1 if task == "regression" else CLASSES,
        unit=unit,
    )


def naive(data: Records, asked: Terms) -> Any:
    """Return the sum, record by record and person by person, by autograd alone."""
    task = make_task(asked.task, {}, outputs=asked.classes)
    model = build_model(
        "mlp", classes=asked.classes, row_shape=(WIDTH,), options=WIDTHS
    ).double()  # the exact sum
    whose = data.persons if asked.unit is Unit.PERSON else np.arange(len(data))
    total: Any = 0
    for one in np.unique(whose):
        rows = np.flatnonzero(whose == one)
        mean: Any = 0
        for row in rows:
            model.zero_grad()
            target = torch.from_numpy(task.take(data.targets[[row]]).values)
            output = model(torch.from_numpy(data.inputs[[row]]).double())
            if asked.task == "regression":
                target = target.double()
            (float(data.weights[row]) * task.losses(output, target)[0]).backward()
            flat = torch.cat([each.grad.flatten() for each in model.parameters()])
            mean = mean + flat / len(rows)
        norm = float(mean.norm())
        factor = min(1, CLIP_NORM / norm) if norm else 0.0
        if asked.clipping == "automatic":
            factor = CLIP_NORM / (norm + 0.01 * CLIP_NORM)
        total = total + mean * factor
    return total.numpy()


@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_client_and_simulator_weigh_as_a_naive_loop_does(unit: Unit, task: str) -> None:
    data = records()
    if task == "regression":
        data = records(targets=np.linspace(-1, 1, ROWS, dtype=np.float32))
    asked = terms(unit, task, "flat")
    wanted = naive(data, asked)
    sums = GradientSums(data, Everybody(), ModelRules(most_parameters=10**6), unit)  # type: ignore[arg-type]
    model = sums.model_of(asked)
    np.testing.assert_allclose(sums.sampled_sum(asked, model), wanted, atol=1e-5)
    made = make_task(task, {}, outputs=asked.classes)
    simulated = BatchSums(model, data, made, clip_norm=CLIP_NORM)
    persons = data.persons if unit is Unit.PERSON else None
    batch = Batch(rows=np.arange(ROWS), owners=np.zeros(ROWS, np.int64), persons=persons)
    np.testing.assert_allclose(simulated.sum(batch), wanted, atol=1e-5)


def test_weights_change_the_sum_and_weights_of_one_do_not() -> None:
    asked = terms(Unit.RECORD, "classification", "flat")

    def total(data: Records) -> Any:
        sums = GradientSums(data, Everybody(), ModelRules(most_parameters=10**6))  # type: ignore[arg-type]
        return sums.sampled_sum(asked, sums.model_of(asked))

    plain = total(records(weights=None))
    np.testing.assert_array_equal(plain, total(records(weights=np.ones(ROWS, np.float32))))
    assert np.abs(plain - total(records())).max() > 0.01


@pytest.mark.parametrize("clipping", ["flat", "automatic"])
@pytest.mark.parametrize("unit", Unit)
@pytest.mark.parametrize("weight", [0, 1e-3, 1, LARGEST, np.float32(3e38)])
def test_whatever_a_weight_is_one_record_moves_the_sum_by_no_more_than_the_clip_norm(
    unit: Unit, clipping: str, weight: float
) -> None:
    data = records(weights=np.full(ROWS, weight, np.float32)).take(np.arange(1))
    asked = terms(unit, "classification", clipping)
    sums = GradientSums(data, Everybody(), ModelRules(most_parameters=10**6), unit)  # type: ignore[arg-type]
    norm = np.linalg.norm(sums.sampled_sum(asked, sums.model_of(asked)))
    assert norm <= CLIP_NORM * (1 + 1e-6)
    assert weight > 0 or norm == 0


HEADER = f"{tables.HEADER},importance"
SCHEMA = f"""weight = "importance"
{tables.SCHEMA}
[columns.importance]
kind = "number"
range = [0.5, 4]
"""


def ward(folder: Any, weights: list[str]) -> Records:
    rows = [
        f"{row},{each}" for row, each in zip(tables.ward_rows(len(weights)), weights, strict=True)
    ]
    path = tables.write_ward(folder / "ward.csv", rows, HEADER)
    tables.write_schema(folder / "schema.toml", SCHEMA)
    return load_data(str(path), schema=folder / "schema.toml").train


def test_a_table_names_the_column_of_weights_and_the_range_that_they_are_clamped_to(
    tmp_path: Any,
) -> None:
    data = ward(tmp_path, ["1", "0.1", "0", "4", "9000", "2.5"])
    assert data.weights is not None
    np.testing.assert_array_equal(data.weights, np.float32([1, 0.5, 0.5, 4, 4, 2.5]))
    assert data.inputs.shape[1] == 6  # the weight is no input


def test_rows_whose_weight_is_missing_or_negative_or_no_number_are_absent_and_named(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    weights = ["1", "", "-1", "nan", "many", "2", "3", "1", "1", "4"]
    data = ward(tmp_path, weights)
    np.testing.assert_array_equal(data.weights, np.float32([1, 2, 3, 1, 1, 4]))
    for sentence in (
        "row 2 counts as absent: column 'importance' is missing, so nobody knows what its row",
        "row 3 counts as absent: column 'importance' = -1 is a negative weight",
        "row 4 counts as absent: column 'importance' is NaN",
        "row 5 counts as absent: column 'importance' = 'many' is not a number",
    ):
        assert sentence in caplog.text


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"importance"\n', '"weight"\n', "weight = 'weight' is not listed in columns"),
        ('weight = "importance"', 'weight = "ill"', "must be a column of its own"),
        ("[0.5, 4]", "[-1, 4]", "whose range begins at 0 or above"),
        ("[0.5, 4]", "[0.5, 4]\nscale = 2", "leave out centre and scale"),
        ('weight = "importance"', 'weight = "sex"', "must be a number"),
    ],
)
def test_a_schema_with_a_weight_that_is_none_is_refused(
    tmp_path: Any, old: str, new: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        tables.write_schema(tmp_path / "schema.toml", SCHEMA.replace(old, new))


def test_a_schema_with_weights_has_another_hash_and_one_without_keeps_its_own(
    tmp_path: Any,
) -> None:
    without = tables.write_schema(tmp_path / "schema.toml", SCHEMA.partition("\n")[2])
    assert tables.write_schema(tmp_path / "schema.toml", SCHEMA) != without
    # As the version before weights computed it.
    assert tables.write_schema(tmp_path / "schema.toml") == (
        "4ab435a67f5aa07b27a99b7655c13a1d7cc12472b0739b9ed2d9f40000f0ed33"
    )


def saved(folder: Any, **changes: Any) -> str:
    arrays = {"x": np.ones((6, 2)), "y": np.arange(6) % 2, "weight": np.arange(6.0), **changes}
    np.savez(folder / "own.npz", **arrays)
    return str(folder / "own.npz")


def test_an_array_of_weights_is_read_clamped_and_bad_ones_are_absent(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = load_data(saved(tmp_path, weight=np.array([1, np.nan, -2, 1e9, 3, 0])))
    assert data.train.weights is not None
    np.testing.assert_array_equal(data.train.weights, np.float32([1, LARGEST, 3, 0]))
    assert "record 1 counts as absent: its weight is NaN" in caplog.text
    assert "record 2 counts as absent: its weight -2 is negative" in caplog.text


@pytest.mark.parametrize(
    "weight", [np.ones((6, 1)), np.array(["a"] * 6), np.ones(5), np.float64(1)]
)
def test_weights_that_are_not_one_number_per_row_are_refused(tmp_path: Any, weight: Any) -> None:
    with pytest.raises(ValueError, match=r"own.npz.*weights of (shape|type)"):
        load_data(saved(tmp_path, weight=weight))


def test_files_of_which_only_some_have_weights_do_not_fit_together(tmp_path: Any) -> None:
    (tmp_path / "own").mkdir()
    saved(tmp_path / "own")
    np.savez(tmp_path / "own" / "other.npz", x=np.ones((6, 2)), y=np.arange(6) % 2)
    with pytest.raises(ValueError, match="some have weights and some have none"):
        load_data(str(tmp_path / "own"))


def weighted() -> Any:
    """A loader of one's own."""
    return np.ones((4, 2), np.float32), np.arange(4) % 2, None, [1, 2, 3, 2000]


def test_an_own_loader_may_return_weights() -> None:
    data = load_data("tests.client.test_weights:weighted")
    np.testing.assert_array_equal(data.train.weights, np.float32([1, 2, 3, LARGEST]))


def test_a_client_reads_the_weights_that_its_policy_names(owner: Any) -> None:
    with np.load(owner.policy.with_suffix(".npz")) as archive:
        arrays = dict(archive)
    weights = np.linspace(0, 2, len(arrays["y_train"]))
    np.savez(owner.policy.parent / "weighed.npz", weight_train=weights, **arrays)
    owner.change(data="weighed.npz")
    found = load_local_data(load_policy(owner.policy)).weights
    np.testing.assert_array_equal(found, weights.astype(np.float32))
