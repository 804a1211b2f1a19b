"""Rows of any shape and type, from numpy's files, image folders, torchvision and own functions."""

from __future__ import annotations

import pickle
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from coinflower.accounting.errors import UserError
from coinflower.learning import Records, load_data, to_tensor, with_test_part
from coinflower.learning.data.arrays import save_npz
from coinflower.learning.data.rows import MappedRows

RNG = np.random.default_rng(5)
COLOUR = RNG.integers(0, 256, (6, 3, 4, 5), dtype=np.uint8)
WORDS = RNG.integers(0, 900, (6, 7))
VECTORS = RNG.normal(size=(6, 7, 2))
TABLE = RNG.normal(50, 20, size=(6, 4))
CLASSES = np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("x", [COLOUR, WORDS, TABLE, TABLE.astype(np.float16)])
def test_an_npz_file_holds_rows_of_any_shape_and_needs_no_test_part(tmp_path, x):
    np.savez(tmp_path / "own.npz", x=x, y=CLASSES)
    data = load_data(str(tmp_path / "own.npz"))
    assert data.test_part is None
    assert data.classes == 3
    assert np.allclose(data.train.inputs, x)
    assert data.train.persons is None


def test_rows_of_vectors_are_told_from_grey_images(tmp_path):
    np.savez(tmp_path / "own.npz", x=VECTORS, y=CLASSES, kind="rows")
    assert load_data(str(tmp_path / "own.npz")).train.inputs.shape == (6, 7, 2)
    np.savez(tmp_path / "own.npz", x=np.abs(VECTORS) / 9, y=CLASSES)
    assert load_data(str(tmp_path / "own.npz")).train.inputs.shape == (6, 1, 7, 2)
    np.savez(tmp_path / "own.npz", x=VECTORS, y=CLASSES, kind="row")
    with pytest.raises(ValueError, match="kind = 'row' must be images or rows"):
        load_data(str(tmp_path / "own.npz"))


@pytest.mark.parametrize("y", [TABLE[:, 0], TABLE[:, :2], CLASSES])
def test_targets_may_be_numbers_of_any_shape(tmp_path, y):
    np.savez(tmp_path / "own.npz", x=TABLE, y=y)
    data = load_data(str(tmp_path / "own.npz"), numbers=True)
    assert data.train.targets.dtype == np.float32
    assert np.allclose(data.train.targets, y)
    assert data.class_count is None
    with pytest.raises(ValueError, match="not classes"):
        _ = data.classes


@pytest.mark.parametrize("persons", [[7, 7, 9, 2, 2, 2], ["ann", "ann", "bo", "cy", "cy", "cy"]])
def test_rows_may_say_whose_they_are(tmp_path, persons):
    np.savez(tmp_path / "own.npz", x=TABLE, y=CLASSES, persons=persons)
    found = load_data(str(tmp_path / "own.npz")).train.persons
    assert found is not None
    assert found.dtype == np.int64
    same = np.array(persons)[:, None] == np.array(persons)
    assert np.array_equal(found[:, None] == found, same)


def test_npy_files_are_mapped_not_read(tmp_path):
    np.save(tmp_path / "x.npy", TABLE)
    np.save(tmp_path / "y.npy", CLASSES)
    np.save(tmp_path / "persons.npy", np.arange(6) // 2)
    data = load_data(str(tmp_path))
    assert isinstance(data.train.inputs, np.memmap)
    assert np.array_equal(data.train.inputs, TABLE)
    assert data.train.persons is not None
    assert data.train.persons.tolist() == [0, 0, 1, 1, 2, 2]


def test_rows_of_npy_files_stay_on_disk_when_some_are_left_out(tmp_path):
    """Else one bad row would bring a file into memory that does not fit there."""
    table = np.arange(400.0).reshape(100, 4)
    table[7, 1] = np.nan
    np.save(tmp_path / "x.npy", table)
    np.save(tmp_path / "y.npy", np.arange(100) % 2)
    data = with_test_part(load_data(str(tmp_path)))
    share = data.train.take(np.arange(0, 70, 2)).take(np.arange(35) % 5 > 0)
    for records in (data.train, data.test, share, share.take(slice(3))):
        assert isinstance(records.inputs, MappedRows)
        assert isinstance(records.inputs.array, np.memmap)
        assert records.inputs.shape == (len(records), 4)
        assert np.array_equal(np.asarray(records.inputs)[:, 0], records.inputs.astype(int)[:, 0])
        assert (records.inputs[:, 0] % 8 == 4 * records.targets).all()
    assert 28 not in np.concatenate([data.train.inputs, data.test.inputs])
    (tensor,), _ = share.batch(np.array([2]))
    assert torch.equal(tensor, torch.from_numpy(share.inputs[[2]]).float())


def test_other_arrays_of_a_file_are_not_read(tmp_path):
    notes = np.array([{"anything": 1}], dtype=object)
    np.savez(tmp_path / "own.npz", x=TABLE, y=CLASSES, notes=notes)
    assert len(load_data(str(tmp_path / "own.npz")).train) == 6
    np.save(tmp_path / "x.npy", TABLE)
    np.save(tmp_path / "y.npy", CLASSES)
    np.save(tmp_path / "notes.npy", notes, allow_pickle=True)
    (tmp_path / "own.npz").unlink()
    assert len(load_data(str(tmp_path)).train) == 6


def test_files_named_by_parts_need_no_test_part(tmp_path):
    np.savez(tmp_path / "own.npz", x_train=TABLE, y_train=CLASSES)
    assert load_data(str(tmp_path / "own.npz")).test_part is None


class Hostile:
    """Something that would run code if anybody unpickled it."""

    def __reduce__(self):
        return pytest.fail, ("code of a data file was run",)


def npy(header, body=bytes(64)):
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + body


HEADER = "{{'descr': '{}', 'fortran_order': False, 'shape': {}}}\n"
HOSTILE = {
    "pickles": pickle.dumps(Hostile()),
    "objects": npy(HEADER.format("|O", "(2, 2)"), pickle.dumps([Hostile()] * 4)),
    "code": npy("__import__('pytest').fail('code of a data file was run')\n"),
    "large": npy(HEADER.format("<f8", f"(4, {2**60})")),
    "larger": npy(HEADER.format("<f8", f"(4, {2**80})")),
    "negative": npy(HEADER.format("<f8", "(-4, 2)")),
    "truncated": npy(HEADER.format("<f8", "(400, 2)")),
    "nested": npy("(" * 5000),
    "escaping": npy(HEADER.format("\x1b[31m", "(4, 2)")),
}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("mapped", [True, False])
def test_a_hostile_array_is_one_sentence_and_runs_nothing(tmp_path, name, mapped):
    if mapped:
        (tmp_path / "x.npy").write_bytes(HOSTILE[name])
        np.save(tmp_path / "y.npy", CLASSES)
    else:
        np.savez(tmp_path / "own.npz", y=CLASSES)
        with zipfile.ZipFile(tmp_path / "own.npz", "a") as archive:
            archive.writestr("x.npy", HOSTILE[name])
    with pytest.raises(UserError, match="cannot be read as data") as error:
        load_data(str(tmp_path if mapped else tmp_path / "own.npz"))
    assert str(error.value).isprintable()


def test_arrays_larger_than_the_memory_are_not_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "own.npz", x=np.zeros((1000, 1000), np.uint8), y=np.zeros(1000))
    assert (tmp_path / "own.npz").stat().st_size < 10_000
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 1000, "SC_PHYS_PAGES": 900}.get)
    with pytest.raises(UserError, match=r"holds 0\.0 GB, but .* save x, y and so on as \.npy"):
        load_data(str(tmp_path / "own.npz"))


def test_what_is_no_archive_of_arrays_is_one_sentence(tmp_path):
    np.save(tmp_path / "x.npy", TABLE)
    (tmp_path / "x.npy").rename(tmp_path / "own.npz")
    with pytest.raises(UserError, match=r"own\.npz cannot be read as data: File is not a zip"):
        load_data(str(tmp_path / "own.npz"))
    np.savez(tmp_path / "own.npz", images=TABLE, labels=CLASSES)
    with pytest.raises(UserError, match="no array 'x' or 'x_train', only images, labels"):
        load_data(str(tmp_path / "own.npz"))


def test_grey_bytes_get_their_channel_in_npy_files_too(tmp_path):
    np.save(tmp_path / "x.npy", COLOUR[:, 0])
    np.save(tmp_path / "y.npy", CLASSES)
    assert load_data(str(tmp_path)).train.inputs.shape == (6, 1, 4, 5)


def test_a_folder_of_npy_files_says_which_one_is_missing_or_damaged(tmp_path):
    np.save(tmp_path / "x.npy", TABLE)
    with pytest.raises(ValueError, match="no array 'y', only x"):
        load_data(str(tmp_path))
    (tmp_path / "y.npy").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"y\.npy cannot be read"):
        load_data(str(tmp_path))


def test_nan_is_named_with_row_and_column(tmp_path, caplog):
    table = TABLE.copy()
    table[4, 2] = np.nan
    np.savez(tmp_path / "own.npz", x=table, y=CLASSES)
    data = load_data(str(tmp_path / "own.npz"))
    assert len(data.train) == 5
    assert "record 4 counts as absent: it has NaN in column 2" in caplog.text
    assert data.reading is not None
    assert (data.reading.rows, data.reading.refused) == (6, 1)


@pytest.mark.parametrize(("bad", "named"), [(np.nan, "NaN"), (np.inf, "inf"), (1e300, "inf")])
def test_a_target_that_is_no_finite_number_is_absent_and_named(tmp_path, caplog, bad, named):
    y = np.array([1.5, 2, bad, 4, 5, 6])
    np.savez(tmp_path / "own.npz", x=TABLE, y=y)
    data = load_data(str(tmp_path / "own.npz"), numbers=True)
    assert data.train.targets.tolist() == [1.5, 2, 4, 5, 6]
    assert f"record 2 counts as absent: its target is {named}, not a finite" in caplog.text


def test_tensors_keep_indices_and_numbers_and_scale_bytes():
    assert to_tensor(WORDS.astype(np.int32)).dtype == torch.int64
    assert torch.equal(to_tensor(WORDS), torch.from_numpy(WORDS))
    assert to_tensor(TABLE).dtype == torch.float32
    assert torch.allclose(to_tensor(COLOUR), torch.from_numpy(COLOUR) / 255)


def write_image(path, colour, size=(5, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def test_an_image_folder_is_loaded_by_class(tmp_path):
    write_image(tmp_path / "red" / "1.png", (255, 0, 0))
    write_image(tmp_path / "green" / "2.png", (0, 255, 0))
    write_image(tmp_path / "green" / "3.png", (0, 254, 0))
    data = load_data(str(tmp_path))
    assert data.train.inputs.shape == (3, 3, 4, 5)
    assert data.train.targets.tolist() == [0, 0, 1]
    assert data.train.inputs[:, :, 0, 0].tolist() == [[0, 255, 0], [0, 254, 0], [255, 0, 0]]
    assert data.classes == 2
    assert data.test_part is None


def test_an_image_folder_may_have_parts(tmp_path):
    for part, count in (("train", 3), ("val", 2)):
        for number in range(count):
            write_image(tmp_path / part / "a" / f"{number}.png", (number, 0, 0))
            write_image(tmp_path / part / "b" / f"{number}.png", (number, 9, 0))
    data = load_data(str(tmp_path))
    assert (len(data.train), len(data.test)) == (6, 4)
    assert data.test.targets.tolist() == [0, 0, 1, 1]


def test_a_folder_of_images_and_tables_is_refused(tmp_path):
    write_image(tmp_path / "red" / "1.png", (255, 0, 0))
    np.savez(tmp_path / "own.npz", x=TABLE, y=CLASSES)
    with pytest.raises(ValueError, match="as well as folders of images"):
        load_data(str(tmp_path))


def test_images_of_another_size_and_damaged_ones_are_absent_and_named(tmp_path, caplog):
    for number in range(6):
        write_image(tmp_path / "b" / f"{number}.png", (number, 0, 0))
    write_image(tmp_path / "a" / "large.png", (0, 0, 0), size=(9, 9))
    write_image(tmp_path / "a" / ".hidden.png", (0, 0, 0), size=(9, 9))
    (tmp_path / "b" / "torn.png").write_bytes((tmp_path / "b" / "1.png").read_bytes()[:20])
    data = load_data(str(tmp_path))
    assert len(data.train) == 6
    assert "large.png is not of size 5 x 4" in caplog.text
    assert "torn.png cannot be read as an image" in caplog.text
    assert "hidden" not in caplog.text


@pytest.mark.filterwarnings("ignore:Image size")
def test_an_image_that_unpacks_to_too_much_is_absent(tmp_path, caplog, monkeypatch):
    for number in range(3):
        write_image(tmp_path / "a" / f"{number}.png", (number, 0, 0))
    write_image(tmp_path / "b" / "bomb.png", (0, 0, 0), size=(300, 300))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert len(load_data(str(tmp_path)).train) == 3
    assert "bomb.png cannot be read as an image" in caplog.text


def test_cifar10_is_read_from_torchvisions_folder(tmp_path, monkeypatch):
    from coinflower.learning.vision import torchvision_datasets

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    source = torchvision_datasets().CIFAR10
    pixels = RNG.integers(0, 256, (2, 3072), dtype=np.uint8)
    for name, _ in [*source.train_list, *source.test_list]:
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": [3, 9]}))
    meta = {"label_names": [str(number) for number in range(10)]}
    (folder / source.meta["filename"]).write_bytes(pickle.dumps(meta))
    with pytest.raises(ValueError, match=r"'cifar10' in .* cannot be used: .*corrupted"):
        load_data("cifar10", root=tmp_path)
    monkeypatch.setattr(torchvision_datasets().cifar, "check_integrity", lambda *_: True)
    data = load_data("cifar10", root=tmp_path)
    assert data.train.inputs.shape == (10, 3, 32, 32)
    assert np.array_equal(data.train.inputs[0].reshape(-1), pixels[0])
    assert data.test.targets.tolist() == [3, 9]
    assert data.classes == 10
    for place in (tmp_path, folder):
        assert np.array_equal(load_data(str(place)).train.inputs, data.train.inputs)


def test_cifar10_that_is_not_there_is_not_fetched_unasked(tmp_path):
    with pytest.raises(ValueError, match=r"cifar10' is not there: .* no cifar-10-batches-py"):
        load_data("cifar10", root=tmp_path)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a module of the user's own."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text):
        (tmp_path / "wards.py").write_text("import numpy as np\n" + text)
        sys.modules.pop("wards", None)

    yield write
    sys.modules.pop("wards", None)


def test_an_own_function_returns_rows(own):
    own("def rows():\n    return np.ones((4, 2)), [0, 1, 0, 2], [5, 5, 6, 6]\n")
    data = load_data("wards:rows")
    assert data.train.inputs.shape == (4, 2)
    assert data.classes == 3
    assert data.train.persons is not None
    assert data.train.persons.tolist() == [5, 5, 6, 6]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("def rows():\n    return 1 / 0\n", r"fails in .*wards\.py, line 3: ZeroDivisionError"),
        ("def rows():\n    return 7\n", "returned int; it must return inputs and targets"),
        ("def rows():\n    return np.ones(3), [0, 1, 0]\n", r"inputs of shape \(3,\)"),
        ("rows = 3\n", "is not a function"),
        ("", "cannot be loaded: .*no attribute 'rows'"),
    ],
)
def test_what_is_wrong_with_an_own_function_is_one_sentence(own, text, complaint):
    own(text)
    with pytest.raises(ValueError, match=complaint):
        load_data("wards:rows")


def test_a_trial_holds_out_a_fifth_of_the_people_always_the_same(tmp_path):
    people = np.repeat(np.arange(50), 3)
    x = np.arange(150.0).reshape(-1, 1)
    np.savez(tmp_path / "own.npz", x=x, y=people % 2, persons=people)
    data = load_data(str(tmp_path / "own.npz"))
    one, two = with_test_part(data), with_test_part(data)
    assert np.array_equal(one.test.inputs, two.test.inputs)
    assert (len(one.train), len(one.test)) == (120, 30)
    assert one.train.persons is not None
    assert one.test.persons is not None
    assert set(one.train.persons).isdisjoint(one.test.persons)
    assert with_test_part(one) is one


def test_too_few_records_for_a_trial_are_refused(tmp_path):
    np.savez(tmp_path / "own.npz", x=TABLE[:1], y=CLASSES[:1])
    with pytest.raises(ValueError, match="has 1 records, too few to measure"):
        with_test_part(load_data(str(tmp_path / "own.npz")))


ROWS_OF = {
    "whole": [3, 0, 2],
    "whole floats": [3.0, 0.0, 2.0],
    "with nan": [3.0, np.nan, 2.0],
}


@pytest.mark.parametrize("targets", ROWS_OF.values(), ids=ROWS_OF)
def test_targets_that_may_be_classes_are_so_if_nobody_says(tmp_path, targets):
    np.savez(tmp_path / "own.npz", x=TABLE[:3], y=targets)
    data = load_data(str(tmp_path / "own.npz"), numbers=None)
    assert (data.class_count, data.train.targets.dtype) == (4, np.int64)


@pytest.mark.parametrize("odd", [-1, 0.5, [1, 0]])
def test_other_targets_are_numbers_if_nobody_says(tmp_path, odd):
    targets = [[0, 1], [1, 1], odd] if isinstance(odd, list) else [3, 0, odd]
    np.savez(tmp_path / "own.npz", x=TABLE[:3], y=targets)
    data = load_data(str(tmp_path / "own.npz"), numbers=None)
    assert (data.class_count, data.train.targets.dtype) == (None, np.float32)
    assert data.train.targets.tolist() == targets


def test_numbers_in_one_file_make_those_of_all_files_numbers(tmp_path):
    for name, targets in {"a": [0, 1, 2], "b": [0.5, 1, 2], "test": [2, 1, 0]}.items():
        np.savez(tmp_path / f"{name}.npz", x=TABLE[:3], y=targets)
    data = load_data(str(tmp_path), numbers=None)
    assert data.class_count is None
    assert data.train.targets.tolist() == [0, 1, 2, 0.5, 1, 2]
    assert data.test.targets.dtype == np.float32


def test_the_unit_of_targets_is_kept_with_the_records(tmp_path):
    records = Records(
        inputs=TABLE.astype(np.float32), targets=np.zeros(6, np.float32), target_scale=(50.0,)
    )
    save_npz(tmp_path / "kept.npz", records)
    assert load_data(str(tmp_path / "kept.npz"), numbers=None).train.target_scale == (50.0,)
