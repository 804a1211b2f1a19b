"""CSV files as hospitals and banks export them: the same table, however it is written."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from coinflower.learning import load_data
from coinflower.learning.data.tables.draft import draft_schema
from coinflower.learning.data.tables.schema import Kind, load_schema
from coinflower.learning.data.tables.table import column_types

SCHEMA = """
target = "ill"
person = "patient"
{}
[columns."größe"]
kind = "number"
range = [0, 200]
[columns.stadt]
kind = "category"
values = ["Köln", "Bonn"]
[columns.ill]
kind = "category"
values = ["no", "yes"]
"""
TABLE = "patient,größe,stadt,ill\n1,162.5,Köln,no\n1,162.5,Bonn,yes\n2,180,Aachen,no\n"
DECIMAL_COMMA = TABLE.replace(",", ";").replace(".", ",")


def read(tmp_path, content, *keys, name="ward.csv"):
    (tmp_path / "schema.toml").write_text(SCHEMA.format("\n".join(keys)))
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_data(str(tmp_path / name), schema=tmp_path / "schema.toml").train


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        (TABLE.encode("utf-8-sig"), ()),
        (TABLE.replace("\n", "\r\n"), ()),
        (TABLE.replace(",", ";"), ()),
        (TABLE.replace(",", "\t"), ()),
        (TABLE.replace(",", "|"), ()),
        (DECIMAL_COMMA, ['decimal = ","']),
        (TABLE.encode("latin-1"), ['encoding = "latin-1"']),
        (TABLE.encode("cp1252"), ['encoding = "cp1252"']),
        (TABLE.encode("utf-16"), ['encoding = "utf-16"']),
        (TABLE.replace(",", ", "), ()),
        (TABLE.replace("Bonn", '"Bonn "').replace("größe", '"größe"'), ()),
        (unicodedata.normalize("NFD", TABLE), ()),
        (TABLE.replace("\n", "\n\n"), ()),
        (TABLE.replace("\n", ",x;y;z\n"), ()),
    ],
)
def test_the_same_table_however_it_is_written(tmp_path, content, keys):
    expected = read(tmp_path, TABLE)
    found = read(tmp_path, content, *keys)
    assert np.array_equal(found.inputs, expected.inputs)
    assert np.array_equal(found.targets, expected.targets)
    assert np.array_equal(found.persons, expected.persons)
    assert expected.inputs[:, :5].tolist() == [
        [0.625, 0, 1, 0, 0],
        [0.625, 0, 0, 1, 0],
        [np.float32(0.8), 0, 0, 0, 1],
    ]
    assert found.schema == expected.schema, "how a file is written is no part of the hash"


def test_columns_in_another_order_are_the_same_table(tmp_path):
    lines = [line.split(",") for line in TABLE.splitlines()]
    turned = "\n".join(",".join(line[::-1]) for line in lines)
    assert np.array_equal(read(tmp_path, turned).inputs, read(tmp_path, TABLE).inputs)


@pytest.mark.parametrize("name", ["WARD.CSV", "ward.tsv"])
def test_endings_of_names_are_taken_as_they_come(tmp_path, name):
    assert len(read(tmp_path, TABLE, name=name)) == 3


@pytest.mark.parametrize(
    ("content", "keys", "complaint"),
    [
        (
            TABLE.encode("latin-1"),
            (),
            r'ward\.csv is not utf-8 in line 1: .* encoding = "cp1252"; the hash .* the same',
        ),
        (TABLE.encode("utf-16"), (), r'not utf-8 in line 1: .* encoding = "utf-16"'),
        (TABLE, ['encoding = "ascii"'], "is not ascii in line 1"),
        (TABLE, ['encoding = "latin"'], "has no column 'größe'"),
        (TABLE, ['encoding = "klingon"'], "encoding = 'klingon' is unknown; usual are"),
        (TABLE, ['encoding = "rot13"'], "encoding = 'rot13' is unknown"),
        (TABLE, ['decimal = "x"'], "decimal = 'x'"),
        (DECIMAL_COMMA, (), r"'größe' = '162,5' is not a number; .*decimal = \",\" in the schema"),
        (TABLE, ['decimal = ","'], r"= '162\.5' is not a number; .*decimal = \"\.\" in the schema"),
        (TABLE.replace("größe", "\x1b[31mgröße"), (), r"it has patient, \\x1b\[31mgröße, stadt"),
        (TABLE.replace("ill", "x" * 9000), (), r"x… \(90\d\d characters\)"),
        (TABLE.replace("stadt", "größe"), (), "has 2 columns 'größe'"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path, content, keys, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        read(tmp_path, content, *keys)
    assert "\n" not in str(error.value)


def test_a_column_of_two_spellings_is_refused(tmp_path):
    text = SCHEMA.format("") + unicodedata.normalize("NFD", '[columns."größe"]\nkind = "ignored"\n')
    (tmp_path / "schema.toml").write_text(text)
    assert load_schema(tmp_path / "schema.toml").features[0] == "größe"
    twice = text.replace('kind = "ignored"', 'kind = "number"\nrange = [0, 1]')
    (tmp_path / "schema.toml").write_text(twice)
    with pytest.raises(ValueError, match="twice, in two spellings"):
        load_schema(tmp_path / "schema.toml")


def test_a_blank_person_is_refused_whatever_else_is_missing(tmp_path, caplog):
    read(tmp_path, TABLE.replace("2,180", ",180"), 'missing_values = ["NA"]')
    assert "row 3 counts as absent: column 'patient' is blank" in caplog.text


def test_nan_is_nobody_and_no_category(tmp_path, caplog):
    read(tmp_path, TABLE)
    columns = {
        "patient": [1.0, 1.0, float("nan")],
        "größe": [162.5, 162.5, 180],
        "stadt": [float("nan")] * 3,
        "ill": ["no", "yes", "no"],
    }
    pa_parquet.write_table(pa.table(columns), tmp_path / "ward.parquet")
    data = load_data(str(tmp_path / "ward.parquet"), schema=tmp_path / "schema.toml")
    assert "row 3 counts as absent: column 'patient' is blank" in caplog.text
    assert data.reading is not None
    assert (data.reading.missing["stadt"], data.reading.unknown["stadt"]) == (3, 0)


def test_a_value_in_the_log_commands_no_terminal(tmp_path, caplog):
    read(tmp_path, TABLE.replace("180", "\x1b]0;title\x07"))
    assert "= '\\x1b]0;title\\x07' is not a number" in caplog.text
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (TABLE, []),
        (TABLE.encode("cp1252"), ['encoding = "cp1252"']),
        (TABLE.encode("utf-16"), ['encoding = "utf-16"']),
        (DECIMAL_COMMA, ['decimal = ","']),
        (DECIMAL_COMMA.encode("cp1252"), ['encoding = "cp1252"', 'decimal = ","']),
    ],
)
def test_a_draft_says_how_the_file_is_written(tmp_path, content, lines):
    path = tmp_path / "ward.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    columns, spelling = column_types(path)
    kinds = [Kind.NUMBER, Kind.NUMBER, Kind.CATEGORY, Kind.CATEGORY]
    assert columns == dict(zip(TABLE.splitlines()[0].split(","), kinds, strict=True))
    draft = draft_schema(path, columns, spelling, target="ill", person="patient")
    written = [line.partition("  #")[0] for line in draft.splitlines()]
    assert [line for line in written if line.startswith(("encoding", "decimal"))] == lines


def test_a_draft_of_a_large_file_is_of_its_beginning_and_its_whole_encoding(tmp_path):
    path = tmp_path / "ward.csv"
    path.write_bytes(b"name,age\n" + b"x,1\n" * 300_000 + "ö,old\n".encode("latin-1"))
    columns, spelling = column_types(path)
    assert columns == {"name": Kind.CATEGORY, "age": Kind.NUMBER}
    assert spelling is not None
    assert spelling.encoding == "cp1252"


def test_a_draft_leaves_out_columns_without_a_name_and_explains_dates(tmp_path):
    path = tmp_path / "ward.csv"
    path.write_text(",born,age\n0,1970-01-01,30\n")
    columns, spelling = column_types(path)
    assert columns == {"born": Kind.IGNORED, "age": Kind.NUMBER}
    draft = draft_schema(path, columns, spelling, target="age", person=None)
    assert 'kind = "ignored"  # a date' in draft


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("ward.xlsx", b"PK", "ward.xlsx is no table: save it as CSV"),
        ("ward.csv", b"", "it is empty"),
        ("ward.csv", b"\n\n", "it is empty"),
        ("ward.parquet", b"PAR1", "cannot be read as a table"),
    ],
)
def test_what_no_draft_can_be_made_of_is_one_sentence(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        column_types(tmp_path / name)
