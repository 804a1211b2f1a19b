"""One record that cannot be used counts as absent, and its owner is told."""

from __future__ import annotations

import numpy as np
import pytest

from coinflower.learning.data.loading import load_data
from coinflower.learning.data.reading import outside_of_zero_to_one, usable_records

GOOD = np.linspace(0, 1, 6 * 4 * 4, dtype=np.float32).reshape(6, 4, 4)
LABELS = np.arange(6) % 3


def changed(row, value):
    images = GOOD.copy()
    images[row, 1, 2] = value
    return images


@pytest.mark.parametrize(
    ("images", "labels", "reason"),
    [
        (changed(2, np.nan), LABELS, "NaN in column (0, 1, 2)"),
        (changed(2, np.inf), LABELS, "inf in column (0, 1, 2)"),
        (changed(2, -1e-3), LABELS, "values outside of 0..1"),
        (changed(2, 255.0), LABELS, "values outside of 0..1"),
        (GOOD, np.where(np.arange(6) == 2, -1, LABELS), "label is negative"),
        (GOOD, np.where(np.arange(6) == 2, np.nan, LABELS), "label is NaN, not an integer"),
        (GOOD, np.where(np.arange(6) == 2, 0.5, LABELS), "label is not an integer"),
        (GOOD, np.where(np.arange(6) == 2, np.inf, LABELS), "label is not an integer"),
        (GOOD, np.where(np.arange(6) == 2, 1e300, LABELS), "label is not an integer"),
    ],
)
def test_one_bad_record_is_absent_and_named_in_the_log(tmp_path, caplog, images, labels, reason):
    np.savez(tmp_path / "own.npz", x_train=images, y_train=labels, x_test=GOOD, y_test=LABELS)
    data = load_data(str(tmp_path / "own.npz"))
    kept = [0, 1, 3, 4, 5]
    assert np.array_equal(data.train.inputs[:, 0], GOOD[kept])
    assert data.train.targets.tolist() == LABELS[kept].tolist()
    assert "own.npz: record 2 counts as absent" in caplog.text
    assert reason in caplog.text
    assert "1 of 6 records count as absent" in caplog.text


def test_sound_records_are_passed_on_as_they_are(caplog):
    records, reading = usable_records("data", (GOOD,), LABELS)
    assert records.inputs is GOOD
    assert records.targets.tolist() == LABELS.tolist()
    assert (reading.rows, reading.refused) == (6, 0)
    assert caplog.text == ""


def test_labels_beyond_the_classes_that_are_known_are_absent(caplog):
    records, reading = usable_records("data", (GOOD,), np.array([0, 1, 2, 9, 1, 0]), classes=3)
    assert len(records) == 5
    assert records.targets.tolist() == [0, 1, 2, 1, 0]
    assert reading.named == ("record 3: its label is above 2",)
    assert "record 3 counts as absent: its label is above 2" in caplog.text


def test_a_thousand_bad_records_are_counted_and_a_few_named(caplog):
    labels = np.zeros(3000)
    labels[:1000] = -1
    usable_records("data", (np.zeros((3000, 2, 2), np.uint8),), labels)
    assert len(caplog.records) == 11
    assert "1000 of 3000 records count as absent" in caplog.text


def test_data_that_is_mostly_unusable_is_refused():
    images = np.concatenate([GOOD[:1], GOOD[1:] * 255])
    with pytest.raises(ValueError, match=r"5 of 6 records cannot be used; record 1: .*scale them"):
        usable_records("data", (images,), LABELS, faults=[outside_of_zero_to_one(images)])
