"""`coinflower client` with data that is not in order: one sentence, and nobody is asked or told."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
import tomli_w

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.cli import main as cli
from coinflower.cli.machines import client as cli_client
from coinflower.client.node.resident import ResidentNode
from tests.support import tables
from tests.support.builders import policy_fields


class Joined(Exception):  # noqa: N818 - what a test waits for
    """The client was about to connect to the server."""


@pytest.fixture
def client(monkeypatch, capsys, tmp_path):
    """Return a function that starts a client and says how it ended, before it would connect."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli_client, "start_logging", lambda _: None)
    # Other tests' commands may have left handlers whose streams are closed.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    def join(_):
        raise Joined

    monkeypatch.setattr(ResidentNode, "run", join)

    def start(**changes):
        fields = policy_fields(declared_size=100, **changes)
        kept = {key: value for key, value in fields.items() if value is not None}
        (tmp_path / "policy.toml").write_text(tomli_w.dumps(kept))
        if not (tmp_path / "ledger.db").exists():
            Ledger.create(tmp_path / "ledger.db", fields["data_set"]).close()
        words = ["client", "policy.toml", "--superlink", "127.0.0.1:1", "--insecure"]
        monkeypatch.setattr(sys, "argv", ["coinflower", *words])
        with pytest.raises((SystemExit, Joined)) as ended:
            cli.main()
        with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
            assert list(ledger.history()) == []
        code = None if ended.type is Joined else ended.value.code
        return code, capsys.readouterr().err

    return start


OF_AGE = tables.SCHEMA.replace('target = "ill"', 'target = "age"')


def write_table(folder, rows=None, header=tables.HEADER, schema=tables.SCHEMA):
    tables.write_ward(folder / "ward.csv", tables.ward_rows(9) if rows is None else rows, header)
    (folder / "schema.toml").write_text(schema)


def each(row):
    return [row] * 9


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"header": "patient,sex,ill"}, "ward.csv has no column 'age', which the schema needs"),
        ({"header": "patient,Age,sex,ill"}, "no column 'age' (did you mean 'Age'?)"),
        ({"rows": each("p,old,f,no")}, "row 1: column 'age' = 'old' is not a number"),
        ({"rows": each("p,nan,f,no")}, "ward.csv: 9 of 9 rows cannot be used; row 1: column 'age'"),
        ({"rows": each("p,40,f,2")}, "row 1: column 'ill' = '2' is none of the schema's values"),
        ({"rows": each(",40,f,no")}, "row 1: column 'patient' is blank"),
        ({"rows": each("p,40,f")}, "row 1: it has 3 values, not 4"),
        ({"rows": []}, "ward.csv has no rows"),
        (
            {"schema": tables.SCHEMA.replace('["f", "m"]', "[]")},
            "schema.toml cannot be used: columns.sex.values = [] must list the categories",
        ),
        (
            {"schema": tables.SCHEMA.replace("[0, 100]", "[]")},
            "schema.toml cannot be used: columns.age.range = [] must be two numbers",
        ),
        ({"schema": "target = 3"}, "schema.toml"),
        (
            {"schema": OF_AGE, "rows": each("p,101,f,no")},
            "row 1: column 'age' = 101 is not in 0 to 100",
        ),
    ],
)
def test_a_table_that_is_not_in_order_keeps_the_client_from_joining(
    client, tmp_path, table, sentence
):
    write_table(tmp_path, **table)
    code, err = client(data="ward.csv", schema="schema.toml")
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.full((9, 2), np.nan)}, "record 0: it has NaN in column 0"),
        ({"y": np.full(9, np.nan)}, "record 0: its label is NaN, not an integer"),
        ({"x": np.ones((8, 2))}, "8 rows have targets of shape (9,)"),
        ({"x": None}, "no array 'x' or 'x_train', only y"),
        ({"persons": np.ones((9, 2))}, "persons of shape (9, 2)"),
        ({"x": np.full((9, 2), "a")}, "inputs of shape (9, 2) and type <U1 must be an array"),
    ],
)
def test_arrays_that_are_not_in_order_keep_the_client_from_joining(
    client, tmp_path, arrays, sentence
):
    made = {"x": np.ones((9, 2)), "y": np.arange(9) % 2, **arrays}
    kept = {name: array for name, array in made.items() if array is not None}
    np.savez(tmp_path / "own.npz", **kept)
    code, err = client(data="own.npz")
    assert code == 2
    assert "own.npz" in err
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("p,old,f,no", "column 'age' = 'old' is not a number"),
        ("p,nan,f,no", "column 'age' is NaN"),
        ("p,40,f,2", "column 'ill' = '2' is none of the schema's values"),
        ("  ,40,f,no", "column 'patient' is blank"),
        ("p,40,f", "it has 3 values, not 4"),
    ],
)
def test_one_row_that_is_not_in_order_is_absent_and_named_to_the_owner(
    client, tmp_path, caplog, row, why
):
    write_table(tmp_path, [*tables.ward_rows(9), row])
    assert client(data="ward.csv", schema="schema.toml") == (None, "")
    assert f"ward.csv: row 10 counts as absent: {why}" in caplog.text
    assert "ward.csv: 1 of 10 rows count as absent." in caplog.text
