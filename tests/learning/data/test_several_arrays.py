"""Records of several arrays: from every source, row by row the same records."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coinflower.learning import Records, load_data, make_task, model_for, with_test_part
from coinflower.learning.data.arrays import save_npz
from tests.support import scans

MADE = scans.arrays(30)


def assert_all_are_there(records):
    assert [array.shape for array in records.arrays] == [(30, 3, 4, 4), (30, 5)]
    assert np.array_equal(records.inputs, MADE["x0"])
    assert np.array_equal(records.more_inputs[0], MADE["x1"])
    assert np.array_equal(records.targets, MADE["y"])


def test_an_npz_file_has_them_numbered(tmp_path):
    np.savez(tmp_path / "scans.npz", **MADE)
    data = load_data(str(tmp_path / "scans.npz"))
    assert_all_are_there(data.train)
    assert data.test_part is None


def test_they_may_have_a_test_part(tmp_path):
    parts = {
        f"{name}_{part}": array
        for part, size in (("train", 30), ("test", 7))
        for name, array in scans.arrays(size).items()
    }
    np.savez(tmp_path / "scans.npz", **parts)
    data = load_data(str(tmp_path / "scans.npz"))
    assert_all_are_there(data.train)
    assert len(data.test) == len(data.test.more_inputs[0]) == 7


def test_npy_files_stay_on_disk(tmp_path):
    data = load_data(str(scans.write_npy(tmp_path, 30)))
    assert_all_are_there(data.train)
    assert all(isinstance(array, np.memmap) for array in data.train.arrays)


def test_an_own_function_returns_a_tuple_of_them():
    assert_all_are_there(load_data(scans.LOADER).train)


def test_files_of_a_folder_are_put_together(tmp_path):
    for name, rows in (("a", slice(10)), ("b", slice(10, 30))):
        np.savez(tmp_path / f"{name}.npz", **{key: array[rows] for key, array in MADE.items()})
    data = load_data(str(tmp_path))
    assert_all_are_there(data.train)
    assert data.files is not None
    assert [len(rows) for rows in data.files.values()] == [10, 20]
    np.savez(tmp_path / "c.npz", x=MADE["x0"], y=MADE["y"])
    with pytest.raises(ValueError, match=r"do not fit together: .*\(3, 4, 4\), \(5,\), \(\)\) in"):
        load_data(str(tmp_path))


def test_what_is_saved_is_loaded_again(tmp_path):
    records = load_data(scans.LOADER).train
    save_npz(tmp_path / "saved.npz", records)
    assert_all_are_there(load_data(str(tmp_path / "saved.npz")).train)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("x0", "x2"), "has no array 'x1'"),
        (("x1", "x2"), "has no array"),
        (("x", "x1"), "has x as well as numbered arrays"),
    ],
)
def test_numbers_without_order_are_refused(tmp_path, names, sentence):
    inputs = dict(zip(names, (MADE["x0"], MADE["x1"]), strict=True))
    np.savez(tmp_path / "scans.npz", **inputs, y=MADE["y"])
    with pytest.raises(ValueError, match=sentence):
        load_data(str(tmp_path / "scans.npz"))


def test_arrays_of_other_lengths_are_refused(tmp_path):
    np.savez(tmp_path / "scans.npz", x0=MADE["x0"], x1=MADE["x1"][1:], y=MADE["y"])
    with pytest.raises(ValueError, match=r"30 rows have inputs of shape \(29, 5\)"):
        load_data(str(tmp_path / "scans.npz"))


def test_a_row_is_absent_if_any_of_its_arrays_has_nan(tmp_path, caplog):
    vectors = np.random.default_rng(0).normal(size=(30, 5))
    vectors[4, 3] = np.nan
    np.savez(tmp_path / "scans.npz", x0=MADE["x0"], x1=vectors, y=MADE["y"])
    records = load_data(str(tmp_path / "scans.npz")).train
    assert "record 4 counts as absent: it has NaN in column 3 of x1" in caplog.text
    kept = np.delete(np.arange(30), 4)
    assert np.array_equal(records.inputs, MADE["x0"][kept])
    assert np.allclose(records.more_inputs[0], vectors[kept])


def test_a_batch_is_what_a_model_takes():
    records = load_data(scans.LOADER).train
    rows = np.array([7, 3])
    (scan, words), targets = records.batch(rows)
    assert torch.allclose(scan, torch.from_numpy(MADE["x0"][rows]) / 255)
    assert torch.equal(words, torch.from_numpy(MADE["x1"][rows]))
    assert torch.equal(targets, torch.from_numpy(MADE["y"][rows]))
    (scan, words), target = records.blank_row()
    assert (scan.shape, words.shape, target.shape) == ((1, 3, 4, 4), (1, 5), (1,))
    assert not scan.any()
    assert words.dtype == torch.int64


def test_a_trial_holds_out_the_same_rows_of_all():
    data = with_test_part(load_data(scans.LOADER))
    for part in (data.train, data.test):
        for scan, words in zip(part.inputs, part.more_inputs[0], strict=True):
            row = int(np.flatnonzero((MADE["x0"] == scan).all(axis=(1, 2, 3)))[0])
            assert np.array_equal(words, MADE["x1"][row])


def test_a_model_that_takes_one_array_is_refused_before_anybody_waits():
    data = load_data(scans.LOADER)
    task = make_task("classification", {}, outputs=2)
    model_for(scans.BOOKED, data, task)
    with pytest.raises(ValueError, match="cannot take the 3 x 4 x 4 images with rows of 5 val"):
        model_for("digits", data, task)


def test_every_array_needs_its_rows_first():
    with pytest.raises(ValueError, match=r"inputs of shape \(30,\)"):
        Records(inputs=MADE["x0"], more_inputs=(MADE["y"],), targets=MADE["y"])
