import gzip
import hashlib
import mmap
import struct
import threading
import tracemalloc
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch

from coinflower.learning import load_data, to_tensor
from coinflower.learning.vision import torchvision_datasets
from tests.support.sources import write_idx


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 5, 4), dtype=np.uint8)


def labels(count: int, classes: int = 3) -> np.ndarray:
    return (np.arange(count) % classes).astype(np.uint8)


def write_mnist(folder: Path, suffix: str = "") -> None:
    write_idx(folder / f"train-images-idx3-ubyte{suffix}", images(7))
    write_idx(folder / f"train-labels-idx1-ubyte{suffix}", labels(7))
    write_idx(folder / f"t10k-images-idx3-ubyte{suffix}", images(4, seed=1))
    write_idx(folder / f"t10k-labels-idx1-ubyte{suffix}", labels(4))


def write_emnist(folder: Path, split: str, suffix: str = "", first: int = 0) -> None:
    for part, count in (("train", 7), ("test", 4)):
        write_idx(folder / f"emnist-{split}-{part}-images-idx3-ubyte{suffix}", images(count))
        write_idx(
            folder / f"emnist-{split}-{part}-labels-idx1-ubyte{suffix}", labels(count) + first
        )


def test_digits_are_scikit_learns():
    data = load_data("digits")
    digits, targets = sklearn.datasets.load_digits(return_X_y=True)
    inputs = np.concatenate([data.train.inputs, data.test.inputs])
    order = np.random.default_rng(0).permutation(len(targets))
    np.testing.assert_array_equal(inputs.reshape(-1, 64) * 16, digits[order])
    told = np.concatenate([data.train.targets, data.test.targets])
    np.testing.assert_array_equal(told, targets[order])


def test_digits_are_always_split_in_the_same_way():
    one, two = load_data("digits"), load_data("digits")
    assert one.train.inputs.shape == (1437, 1, 8, 8)
    assert one.test.inputs.shape == (360, 1, 8, 8)
    assert one.classes == 10
    assert one.train.persons is None
    assert np.array_equal(one.train.targets, two.train.targets)
    assert one.train.inputs.min() == 0
    assert one.train.inputs.max() == 1
    assert set(one.test.targets) == set(range(10))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", [".", "raw", "MNIST/raw", "FashionMNIST/raw"])
def test_a_folder_of_idx_files_is_loaded_plain_or_compressed(tmp_path, suffix, place):
    write_mnist(tmp_path / place, suffix)
    data = load_data(str(tmp_path))
    assert np.array_equal(data.train.inputs[:, 0], images(7))
    assert np.array_equal(data.test.inputs[:, 0], images(4, seed=1))
    assert data.train.targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert data.train.targets.dtype == np.int64
    assert data.train.inputs.dtype == np.uint8
    assert data.classes == 3
    assert data.train.persons is None


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("place", [".", "EMNIST/raw"])
def test_emnist_is_turned_upright(tmp_path, suffix, place):
    write_emnist(tmp_path / place, "balanced", suffix)
    data = load_data(str(tmp_path))
    assert np.array_equal(data.train.inputs[:, 0], images(7).transpose(0, 2, 1))
    assert data.classes == 47


def test_emnist_letters_start_at_zero(tmp_path):
    write_emnist(tmp_path, "letters", first=1)
    data = load_data(str(tmp_path), split="letters")
    assert data.train.targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert data.classes == 26


def test_one_of_several_emnist_splits_must_be_named(tmp_path):
    write_emnist(tmp_path, "balanced")
    write_emnist(tmp_path, "byclass")
    with pytest.raises(ValueError, match=r"several data sets.*byclass.*EMNIST split"):
        load_data(str(tmp_path))
    assert load_data(str(tmp_path), split="byclass").classes == 62
    with pytest.raises(ValueError, match="no emnist-digits-train-images"):
        load_data(str(tmp_path), split="digits")


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match=r"split = 'by-class'.*byclass"):
        load_data("emnist", split="by-class")


def test_writer_ids_come_from_qmnists_labels(tmp_path):
    write_mnist(tmp_path)
    rows = np.zeros((7, 8), dtype=np.int32)
    rows[:, 0] = labels(7)
    rows[:, 2] = [5, 5, 9, 9, 9, 2, 70_000]
    write_idx(tmp_path / "qmnist-train-labels-idx2-int.gz", rows)
    writers = load_data(str(tmp_path)).train.persons
    assert writers is not None
    assert writers.tolist() == [5, 5, 9, 9, 9, 2, 70_000]


def test_writer_ids_of_other_images_are_refused(tmp_path):
    write_mnist(tmp_path)
    write_idx(tmp_path / "qmnist-train-labels-idx2-int", np.ones((7, 8), dtype=np.int32))
    with pytest.raises(ValueError, match=r"qmnist-train-labels-idx2-int .*does not describe"):
        load_data(str(tmp_path))


def test_a_missing_path_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"data 'digitz' does not exist \(did you mean digits\?\)"):
        load_data("digitz")


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "data.txt").write_text("1,2")
    with pytest.raises(ValueError, match=r"data\.txt' cannot be read by its name"):
        load_data(str(tmp_path / "data.txt"))


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no data: neither .csv, .* nor train-images-idx3-"):
        load_data(str(tmp_path))


def test_idx_files_need_no_test_part(tmp_path):
    write_mnist(tmp_path)
    for part in ("images-idx3", "labels-idx1"):
        (tmp_path / f"t10k-{part}-ubyte").unlink()
    data = load_data(str(tmp_path))
    assert (len(data.train), data.test_part, data.classes) == (7, None, 3)


def test_links_that_lead_nowhere_are_no_data(tmp_path):
    (tmp_path / "raw").symlink_to("raw")
    (tmp_path / "ward.csv").symlink_to("nowhere")
    (tmp_path / "again").symlink_to(".")
    with pytest.raises(ValueError, match="holds no data"):
        load_data(str(tmp_path))


def test_a_missing_file_is_named(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte .*is missing"):
        load_data(str(tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x00", b"\x89PNG\r\n\x1a\n", b"\x00\x00\x08\x01\x00\x00"]
)
def test_a_wrong_magic_number_is_refused_by_file(tmp_path, content):
    write_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte starts with magic number"):
        load_data(str(tmp_path))


@pytest.mark.parametrize("cut", [1, 40, 139, 148])
def test_a_truncated_file_is_refused_by_name(tmp_path, cut):
    write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte is truncated"):
        load_data(str(tmp_path))


def test_a_file_that_is_too_long_is_refused_by_name(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte is too long"):
        load_data(str(tmp_path))


@pytest.mark.parametrize("keep", [3, 30])
def test_a_truncated_gzip_file_is_refused_by_name(tmp_path, keep):
    write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is truncated or not a gzip"):
        load_data(str(tmp_path))


def test_a_gzip_bomb_is_unpacked_no_further_than_its_header_promises(tmp_path):
    write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    bomb = gzip.compress(bytes(1 << 26), compresslevel=1)
    path.write_bytes(path.read_bytes() + bomb)
    tracemalloc.start()
    try:
        complaint = (
            r"train-images-idx3-ubyte\.gz is too long: its header promises 140 bytes .* more$"
        )
        with pytest.raises(ValueError, match=complaint):
            load_data(str(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_a_compressed_idx_file_that_promises_more_than_the_memory_is_refused(tmp_path):
    write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">I3I", 0x0803, *[1 << 31] * 3)))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz holds .* GB, .*unpack it"):
        load_data(str(tmp_path))


def test_a_header_that_promises_more_than_there_is_takes_no_memory(tmp_path):
    write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">I3I", 0x0803, 1 << 10, 1 << 10, 1 << 10)))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"\.gz is truncated: its header promises 1073741824"):
            load_data(str(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_counts_of_images_and_labels_that_differ_are_refused(tmp_path):
    write_mnist(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte", labels(6))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte has 7 images.*6 labels"):
        load_data(str(tmp_path))


def test_images_that_are_not_bytes_are_refused(tmp_path):
    write_mnist(tmp_path)
    write_idx(tmp_path / "train-images-idx3-ubyte", images(7).astype(np.float32))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte holds float32"):
        load_data(str(tmp_path))


def test_parts_of_different_size_are_refused(tmp_path):
    write_mnist(tmp_path)
    write_idx(tmp_path / "t10k-images-idx3-ubyte", images(4)[:, :4])
    with pytest.raises(ValueError, match=r"are 1 x 5 x 4 uint8, but .* 1 x 4 x 4 uint8"):
        load_data(str(tmp_path))


def npz(path: Path, **changes) -> str:
    arrays = {
        "x_train": images(7),
        "y_train": labels(7),
        "x_test": images(4),
        "y_test": labels(4),
    } | changes
    np.savez(path / "own.npz", **{k: v for k, v in arrays.items() if v is not None})
    return str(path / "own.npz")


def test_an_npz_file_is_loaded(tmp_path):
    data = load_data(npz(tmp_path))
    assert np.array_equal(data.train.inputs[:, 0], images(7))
    assert data.test.targets.tolist() == [0, 1, 2, 0]
    assert data.classes == 3


def test_an_npz_file_of_fractions_is_loaded(tmp_path):
    data = load_data(npz(tmp_path, x_train=images(7) / 255, x_test=images(4) / 255))
    assert data.train.inputs.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"y_test": None}, "no array 'y_test'"),
        ({"x_train": images(7) * 1.0}, "scale them to 0..1"),
        ({"x_train": images(7) * np.nan}, r"record 0: it has NaN in column \(0, 0, 0\)"),
        (
            {"x_train": images(7)[..., None]},
            "training row are 5 x 4 x 1 uint8, but .* 1 x 5 x 4 uint8",
        ),
        ({"x_train": images(6)}, "6 rows have targets of shape"),
        ({"x_train": images(7).astype(np.int64)}, "are 5 x 4 int64, but .* uint8"),
        ({"y_train": labels(7).astype(str)}, "targets of shape.*integer classes"),
        ({"y_train": labels(7) + 0.5}, "7 of 7 records cannot be used; .*not an integer"),
        ({"y_train": labels(7).astype(np.int64) - 9}, "7 of 7 records .*label is negative"),
        ({"x_test": images(0), "y_test": labels(0)}, "test part is empty"),
    ],
)
def test_an_npz_file_of_the_wrong_content_is_refused(tmp_path, changes, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        load_data(npz(tmp_path, **changes))
    assert "own.npz" in str(error.value)


def test_a_damaged_npz_file_is_refused(tmp_path):
    (tmp_path / "own.npz").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"own\.npz cannot be read"):
        load_data(str(tmp_path / "own.npz"))


def test_bytes_become_numbers_from_zero_to_one():
    tensor = to_tensor(np.array([[[[0, 255], [51, 102]]]], dtype=np.uint8))
    assert tensor.dtype == torch.float32
    assert tensor.shape == (1, 1, 2, 2)
    torch.testing.assert_close(tensor.flatten(), torch.tensor([0, 1, 0.2, 0.4]))


def test_tensors_are_copies(tmp_path):
    data = load_data("digits")
    to_tensor(data.train.inputs[:3]).fill_(9)
    to_tensor(data.train.inputs).fill_(9)
    assert data.train.inputs.max() == 1


@pytest.mark.parametrize(("spec", "place"), [("mnist", "MNIST"), ("fashionmnist", "FashionMNIST")])
def test_torchvisions_data_loads_from_its_root(tmp_path, spec, place):
    write_mnist(tmp_path / place / "raw")
    data = load_data(spec, root=tmp_path)
    assert np.array_equal(data.train.inputs[:, 0], images(7))
    assert data.test.targets.tolist() == [0, 1, 2, 0]
    assert data.classes == 10


@pytest.mark.parametrize(
    ("split", "classes"),
    [
        ("byclass", 62),
        ("bymerge", 47),
        ("balanced", 47),
        ("letters", 26),
        ("digits", 10),
        ("mnist", 10),
    ],
)
def test_every_split_of_torchvisions_emnist_loads_upright(tmp_path, split, classes):
    write_emnist(tmp_path / "EMNIST" / "raw", split, first=int(split == "letters"))
    data = load_data("emnist", split=split, root=tmp_path)
    assert np.array_equal(data.train.inputs[:, 0], images(7).transpose(0, 2, 1))
    assert data.train.targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert data.classes == classes


def test_torchvisions_data_is_not_downloaded_unless_asked(tmp_path):
    with pytest.raises(ValueError, match=r"data 'mnist' is not there.*allow the download"):
        load_data("mnist", root=tmp_path)
    with pytest.raises(ValueError, match=r"EMNIST/raw has no emnist-byclass-train-images"):
        load_data("emnist", root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_download_is_unpacked_where_torchvision_puts_it_and_made_once(tmp_path, monkeypatch):
    write_emnist(tmp_path / "gzip", "byclass", ".gz")
    archive = tmp_path / "gzip.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in (tmp_path / "gzip").iterdir():
            packed.write(file, f"gzip/{file.name}")
    source = torchvision_datasets().EMNIST
    monkeypatch.setattr(source, "md5", hashlib.md5(archive.read_bytes()).hexdigest())
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setattr(source, "url", f"http://127.0.0.1:{server.server_port}/gzip.zip")
        try:
            data = load_data("emnist", split="byclass", root=tmp_path / "data", download=True)
        finally:
            server.shutdown()
    assert np.array_equal(data.train.inputs[:, 0], images(7).transpose(0, 2, 1))
    assert data.classes == 62
    again = load_data("emnist", split="byclass", root=tmp_path / "data", download=True)
    assert np.array_equal(again.test.targets, data.test.targets)


def test_a_download_that_fails_is_told_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision_datasets().EMNIST, "url", "http://127.0.0.1:9/gzip.zip")
    with pytest.raises(ValueError, match=r"'emnist' cannot be downloaded to .*check the network"):
        load_data("emnist", root=tmp_path, download=True)


def test_only_emnist_has_splits(tmp_path):
    with pytest.raises(ValueError, match="'mnist' has no splits"):
        load_data("mnist", split="byclass", root=tmp_path)


def test_images_stay_on_disk_until_they_are_looked_at(tmp_path):
    write_emnist(tmp_path, "byclass")
    base = load_data(str(tmp_path)).train.inputs
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, mmap.mmap)


def test_real_mnist_has_539_writers(shared_data):
    data = load_data(str(shared_data / "mnist"))
    assert data.train.inputs.shape == (60_000, 1, 28, 28)
    assert data.test.inputs.shape == (10_000, 1, 28, 28)
    assert data.classes == 10
    assert data.train.persons is not None
    counts = np.unique(data.train.persons, return_counts=True)[1]
    assert len(counts) == 539
    assert (counts.min(), counts.max()) == (19, 131)


def test_real_emnist_glyphs_load_with_62_classes(shared_data):
    if not (shared_data / "emnist").is_dir():
        pytest.skip(f"no folder emnist in {shared_data}")
    data = load_data(str(shared_data / "emnist"))
    assert data.classes == 62
    assert data.train.inputs.shape[1:] == (1, 28, 28)
