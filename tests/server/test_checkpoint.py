"""The server's memory: whole after any crash, and of one experiment only."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from coinflower.server.checkpoint import Checkpoint, CheckpointFolder, write_atomically

VECTOR = np.arange(5, dtype=np.float32)
MEMORY = {"exp_avg": -VECTOR, "exp_avg_sq": 2 * VECTOR, "steps": np.array([3])}


def at(round_: int) -> Checkpoint:
    return Checkpoint(weights=VECTOR + round_, memory=MEMORY, round=round_)


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "state", "hash")


def test_a_new_folder_is_empty(folder: CheckpointFolder, tmp_path: Path) -> None:
    assert (tmp_path / "state").is_dir()
    assert not folder.exists()
    assert folder.load() is None
    assert folder.used_through() == 0


def test_what_was_saved_is_loaded(folder: CheckpointFolder, tmp_path: Path) -> None:
    folder.save(at(3))
    folder.save(at(4))
    loaded = CheckpointFolder(tmp_path / "state", "hash").load()
    assert loaded is not None
    assert loaded.round == 4
    assert np.array_equal(loaded.weights, VECTOR + 4)
    assert loaded.memory.keys() == MEMORY.keys()
    assert all(np.array_equal(loaded.memory[name], value) for name, value in MEMORY.items())
    assert loaded.weights.dtype == loaded.memory["exp_avg"].dtype == np.float32


def test_used_rounds_survive(folder: CheckpointFolder, tmp_path: Path) -> None:
    folder.use_rounds_through(7)
    assert CheckpointFolder(tmp_path / "state", "hash").used_through() == 7


@pytest.mark.parametrize("first", ["save", "use"])
def test_either_file_means_that_an_experiment_has_begun(
    folder: CheckpointFolder, first: str
) -> None:
    if first == "save":
        folder.save(at(0))
    else:
        folder.use_rounds_through(1)
    assert folder.exists()


class PowerCutError(BaseException):
    """Nothing runs after this."""


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_crash_before_the_new_file_is_in_place_leaves_the_old_one(
    folder: CheckpointFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    folder.save(at(1))
    folder.use_rounds_through(2)

    def cut(*_: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr({"fsync": os, "replace": Path}[moment], moment, cut)
        with pytest.raises(PowerCutError):
            folder.save(at(2))
        with pytest.raises(PowerCutError):
            folder.use_rounds_through(3)
    again = CheckpointFolder(tmp_path / "state", "hash")
    loaded = again.load()
    assert loaded is not None
    assert loaded.round == 1
    assert again.used_through() == 2
    again.save(at(2))
    assert (again.load() or at(0)).round == 2


def test_content_is_on_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deeds: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_fsync(handle: int) -> None:
        deeds.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{handle}'))}")
        fsync(handle)

    def watched_replace(self: Path, target: Path) -> Path:
        deeds.append(f"rename {self.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    write_atomically(tmp_path / "file", b"content")
    assert deeds == ["sync file.draft", "rename file.draft", f"sync {tmp_path.name}"]
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_full_disk_is_told_with_the_file_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "file"
    write_atomically(path, b"before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_atomically(path, b"after")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"before"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_draft_that_a_crash_left_behind_does_no_harm(
    folder: CheckpointFolder, tmp_path: Path
) -> None:
    (tmp_path / "state" / "checkpoint.safetensors.draft").write_bytes(b"half")
    assert not folder.exists()
    folder.save(at(1))
    assert (folder.load() or at(0)).round == 1


def test_other_terms_are_refused_by_either_file(folder: CheckpointFolder, tmp_path: Path) -> None:
    other = CheckpointFolder(tmp_path / "state", "another hash")
    folder.save(at(1))
    with pytest.raises(ValueError, match="holds an experiment with other terms"):
        other.load()
    folder.use_rounds_through(1)
    with pytest.raises(ValueError, match="holds an experiment with other terms"):
        other.used_through()


@pytest.mark.parametrize("keep", [0, 3, 40, -1])
def test_a_truncated_checkpoint_is_named(
    folder: CheckpointFolder, tmp_path: Path, keep: int
) -> None:
    folder.save(at(1))
    path = tmp_path / "state" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=f"The checkpoint {path} is damaged"):
        folder.load()


TENSORS: dict[str, Any] = {"weights": VECTOR, "velocity": VECTOR, "round": np.array([1])}


def test_a_checkpoint_of_an_earlier_version_keeps_its_momentum(
    folder: CheckpointFolder, tmp_path: Path
) -> None:
    path = tmp_path / "state" / "checkpoint.safetensors"
    path.write_bytes(save(TENSORS, metadata={"terms": "hash"}))
    loaded = folder.load()
    assert loaded is not None
    assert loaded.memory["momentum_buffer"].tolist() == VECTOR.tolist()
    assert loaded.memory["steps"].tolist() == [1]


@pytest.mark.parametrize(
    ("changes", "metadata"),
    [
        ({"weights": None}, {"terms": "hash"}),
        ({"velocity": VECTOR[:2]}, {"terms": "hash"}),
        ({"velocity": None}, {"terms": "hash"}),
        ({"velocity": None, "steps": np.array([-1])}, {"terms": "hash"}),
        ({"exp_avg": VECTOR[:2]}, {"terms": "hash"}),
        ({"weights": np.zeros((1, 5), np.float32)}, {"terms": "hash"}),
        ({"round": np.array([], np.int64)}, {"terms": "hash"}),
        ({"round": None}, {"terms": "hash"}),
        ({}, {}),
        ({}, None),
    ],
)
def test_a_file_that_lacks_something_is_damaged(
    folder: CheckpointFolder, tmp_path: Path, changes: dict[str, Any], metadata: Any
) -> None:
    tensors = {key: value for key, value in {**TENSORS, **changes}.items() if value is not None}
    path = tmp_path / "state" / "checkpoint.safetensors"
    path.write_bytes(save(tensors, metadata=metadata))
    with pytest.raises(ValueError, match="is damaged"):
        folder.load()


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", "null", '{"terms": "hash"}', '{"terms": "hash", "used_through": "x"}'],
)
def test_a_damaged_record_of_used_rounds_is_not_read_as_none(
    folder: CheckpointFolder, tmp_path: Path, content: str
) -> None:
    (tmp_path / "state" / "used-rounds.json").write_text(content)
    with pytest.raises(ValueError, match="is damaged; without it rounds might be played twice"):
        folder.used_through()


@given(st.binary(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_files_hold_only_a_value_error_comes_out(
    folder: CheckpointFolder, tmp_path: Path, junk: bytes
) -> None:
    for name in ("checkpoint.safetensors", "used-rounds.json"):
        (tmp_path / "state" / name).write_bytes(junk)
    with pytest.raises(ValueError, match="is damaged"):
        folder.load()
    with pytest.raises(ValueError, match=r"is damaged|other terms"):
        folder.used_through()


def test_used_rounds_are_readable_by_people(folder: CheckpointFolder, tmp_path: Path) -> None:
    folder.use_rounds_through(12)
    content = json.loads((tmp_path / "state" / "used-rounds.json").read_text())
    assert content == {"terms": "hash", "used_through": 12}
