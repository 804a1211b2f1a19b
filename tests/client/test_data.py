"""A client's own data: all of a data set, or its share."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from coinflower.accounting.errors import UserError
from coinflower.client.data import load_local_data
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from tests.support.participants import enrolled, exact_sum
from tests.support.sources import write_idx


def test_without_a_share_all_training_rows_are_the_clients(owner: Any) -> None:
    data = load_local_data(load_policy(owner.policy))
    assert len(data) == 30
    assert data.inputs.shape == (30, 1, 8, 8)


def test_more_rows_than_declared_are_refused(owner: Any) -> None:
    owner.change(declared_size=29)
    with pytest.raises(ValueError, match="has 30 records, more than the declared 29"):
        load_local_data(load_policy(owner.policy))


def test_fewer_rows_than_declared_are_fine(owner: Any) -> None:
    owner.change(declared_size=1000)
    assert len(load_local_data(load_policy(owner.policy))) == 30


def test_shares_are_disjoint_and_complete(owner: Any) -> None:
    rows = []
    for index in range(4):
        owner.change(share={"clients": 4, "index": index, "seed": 2})
        rows.append(load_local_data(load_policy(owner.policy)).inputs.reshape(-1, 64))
    owner.change(share=None)
    whole = load_local_data(load_policy(owner.policy)).inputs.reshape(-1, 64)
    together = np.concatenate(rows)
    assert sorted(map(bytes, together)) == sorted(map(bytes, whole))


def test_another_seed_is_another_share(owner: Any) -> None:
    shares = []
    for seed in (1, 2):
        owner.change(share={"clients": 3, "index": 0, "seed": seed})
        shares.append(load_local_data(load_policy(owner.policy)).inputs)
    assert not np.array_equal(shares[0], shares[1])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data": "nowhere"}, "data 'nowhere' does not exist"),
        ({"share": {"clients": 31, "index": 0}}, "clients = 31 must lie in 1 to 30"),
        ({"share": {"clients": 3, "index": 0, "how": "fair"}}, "partition = 'fair'"),
        ({"share": {"clients": 3, "index": 0, "how": "writer"}}, "needs writer ids"),
    ],
)
def test_data_that_cannot_be_had_is_a_sentence(
    owner: Any, changes: dict[str, Any], sentence: str
) -> None:
    owner.change(**changes)
    with pytest.raises(ValueError, match=sentence):
        load_local_data(load_policy(owner.policy))


def test_one_malformed_record_does_not_keep_a_client_away(
    owner: Any, make_terms: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = owner.policy.with_suffix(".npz")
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["x_train"][3, 0, 0] = np.nan
    arrays["y_train"] = np.where(np.arange(30) == 7, -1, arrays["y_train"])
    np.savez(owner.policy.parent / "odd.npz", **arrays)
    owner.change(data="odd.npz")
    participant = owner.open()
    assert len(participant._gradients.data) == 29
    assert participant.enrol(make_terms()) == 30  # what the server hears does not change
    assert "record 3 counts as absent" in caplog.text
    assert "record 6 counts as absent: its target -1 is not one of the classes 0 to" in caplog.text


def test_a_mapped_row_that_cannot_be_used_any_more_counts_as_zero(
    owner: Any, make_terms: Any, weights: bytes
) -> None:
    """A file may change while a client runs; nothing but its own rows suffers."""
    data = load_local_data(load_policy(owner.policy))
    folder = owner.policy.parent / "mapped"
    folder.mkdir()
    np.save(folder / "x.npy", data.inputs)
    np.save(folder / "y.npy", data.targets)
    expected = exact_sum(owner, weights, without=[4])
    owner.change(data="mapped")
    terms = make_terms(Mode.TRUSTED, q=1.0)
    participant = enrolled(owner.open_with(True), terms)
    np.load(folder / "x.npy", mmap_mode="r+")[4] = np.nan
    np.testing.assert_allclose(participant.gradient_sum(terms, 1, weights), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["npy", "idx"])
@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.UNTRUSTED])
def test_a_mapped_file_that_was_cut_short_is_named_and_nothing_is_charged(
    owner: Any, make_terms: Any, weights: bytes, mode: Mode, kind: str
) -> None:
    """Reading beyond the end of a mapped file would end the process."""
    data = load_local_data(load_policy(owner.policy))
    folder = owner.policy.parent / "mapped"
    folder.mkdir()
    if kind == "npy":
        images = folder / "x.npy"
        np.save(images, data.inputs)
        np.save(folder / "y.npy", data.targets)
    else:
        images = folder / "train-images-idx3-ubyte"
        write_idx(images, (data.inputs[:, 0] * 255).astype(np.uint8))
        write_idx(folder / "train-labels-idx1-ubyte", data.targets.astype(np.uint8))
    owner.change(data="mapped")
    terms = make_terms(mode, q=1.0)
    participant = enrolled(owner.open_with(True), terms)
    before = owner.entries()
    os.truncate(images, 200)
    with pytest.raises(
        UserError, match=rf"{images.name} was cut short: it had \d+ bytes, and has 200"
    ):
        participant.gradient_sum(terms, 1, weights)
    assert owner.entries() == before
