"""Tables are read as the public schema says; rows that cannot be used are absent and named."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from coinflower.learning import load_data, partition, with_test_part
from coinflower.learning.data.tables.schema import Kind
from coinflower.learning.data.tables.table import column_types

SCHEMA = """
target = "ill"
person = "patient"
[columns.age]
kind = "number"
range = [0, 100]
[columns.sex]
kind = "category"
values = ["f", "m"]
[columns.ill]
kind = "category"
values = ["no", "yes"]
"""
ROWS = [
    ("ann", "50", "f", "no"),
    ("ann", "75", "f", "yes"),
    ("bo", "250", "x", "no"),
    ("cy", "", "m", "yes"),
    ("di", "-3", "", "no"),
]
HEADER = "patient,age,sex,ill"


def write(tmp_path, rows=ROWS, header=HEADER, schema=SCHEMA, name="ward.csv"):
    (tmp_path / "schema.toml").write_text(schema)
    text = "\n".join([header, *(",".join(row) for row in rows), ""])
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def read(tmp_path, *args, **options):
    path = write(tmp_path, *args, **options)
    return load_data(path, schema=tmp_path / "schema.toml")


def test_a_table_becomes_numbers_by_public_knowledge_only(tmp_path):
    data = read(tmp_path)
    assert data.train.inputs.dtype == np.float32
    assert data.train.inputs.tolist() == [
        [0, 0, 1, 0, 0, 0],
        [0.5, 0, 1, 0, 0, 0],
        [1, 0, 0, 0, 1, 0],
        [0, 1, 0, 1, 0, 0],
        [-1, 0, 0, 0, 0, 1],
    ]
    assert data.train.targets.tolist() == [0, 1, 0, 1, 0]
    assert data.train.persons is not None
    assert data.train.persons[0] == data.train.persons[1]
    assert len(set(data.train.persons.tolist())) == 4
    assert data.classes == 2
    assert data.test_part is None
    reading = data.reading
    assert reading is not None
    assert (reading.rows, reading.refused) == (5, 0)
    assert reading.clamped == {"age": 2}
    assert reading.unknown == {"sex": 1}
    assert reading.missing == {"age": 1, "sex": 1}


def test_one_row_is_encoded_alike_whatever_the_others_are(tmp_path):
    """No statistic of the data enters: a row alone has the numbers that it has among others."""
    together = read(tmp_path).train.inputs
    for row, encoded in zip(ROWS, together, strict=True):
        assert np.array_equal(read(tmp_path, [row]).train.inputs[0], encoded)


def test_parquet_gives_the_same_records(tmp_path):
    expected = read(tmp_path).train
    table = pa.table(
        {
            "patient": pa.array([7, 7, 8, 9, 10]),
            "age": pa.array([50, 75, 250, None, -3], pa.int16()),
            "sex": pa.array(["f", "f", "x", "m", None]).dictionary_encode(),
            "ill": pa.array(["no", "yes", "no", "yes", "no"], pa.large_string()),
            "when": pa.array([1, 2, 3, 4, 5], pa.timestamp("s")),
        }
    )
    pa_parquet.write_table(table, tmp_path / "ward.parquet")
    data = load_data(str(tmp_path / "ward.parquet"), schema=tmp_path / "schema.toml")
    assert np.array_equal(data.train.inputs, expected.inputs)
    assert np.array_equal(data.train.targets, expected.targets)
    assert data.train.persons is not None
    assert data.train.persons.tolist() == [7, 7, 8, 9, 10]
    assert data.train.schema == expected.schema
    assert column_types(tmp_path / "ward.parquet")[0] == {
        "patient": Kind.NUMBER,
        "age": Kind.NUMBER,
        "sex": Kind.CATEGORY,
        "ill": Kind.CATEGORY,
        "when": Kind.IGNORED,
    }


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (("ed", "old", "f", "no"), "column 'age' = 'old' is not a number"),
        (("ed", "nan", "f", "no"), "column 'age' is NaN"),
        (("ed", "1e999", "f", "no"), "column 'age' is infinite"),
        (("", "40", "f", "no"), "column 'patient' is blank"),
        (("ed", "40", "f", "maybe"), "column 'ill' = 'maybe' is none of the schema's values"),
        (("ed", "40", "f", ""), "column 'ill' is missing"),
        (("ed", "40"), "it has 2 values, not 4"),
    ],
)
def test_a_row_that_cannot_be_used_is_absent_and_named(tmp_path, caplog, row, why):
    rows = [*ROWS[:2], row, *ROWS[2:]]
    data = read(tmp_path, rows)
    assert np.array_equal(data.train.inputs, read(tmp_path).train.inputs)
    assert f"ward.csv: row 3 counts as absent: {why}" in caplog.text
    assert data.reading is not None
    assert (data.reading.rows, data.reading.refused) == (6, 1)
    assert data.reading.clamped == {"age": 2}


def test_rows_after_a_torn_one_keep_their_numbers(tmp_path, caplog):
    read(tmp_path, [*ROWS[:1], ("ed",), *ROWS[1:], ("flo", "x", "f", "no")])
    assert "row 2 counts as absent: it has 1 values, not 4" in caplog.text
    assert "row 7 counts as absent: column 'age' = 'x'" in caplog.text


def test_a_missing_value_refuses_the_row_where_the_schema_says_so(tmp_path, caplog):
    schema = SCHEMA.replace("range = [0, 100]", 'range = [0, 100]\nmissing = "refused"')
    data = read(tmp_path, schema=schema)
    assert len(data.train) == 4
    assert data.train.inputs.shape[1] == 5
    assert "row 4 counts as absent: column 'age' is missing" in caplog.text


def test_numbers_as_targets_are_scaled_and_must_lie_in_their_range(tmp_path, caplog):
    schema = SCHEMA.replace('target = "ill"', 'target = "age"')
    data = read(tmp_path, [*ROWS, *ROWS[:2]], schema=schema)
    assert data.train.targets.tolist() == [0.0, 0.5, 0.0, 0.5]
    assert data.train.targets.dtype == np.float32
    assert data.class_count is None
    assert "row 3 counts as absent: column 'age' = 250 is not in 0 to 100" in caplog.text
    assert "row 4 counts as absent: column 'age' is missing" in caplog.text


def test_several_targets_are_a_vector_per_row(tmp_path):
    schema = SCHEMA.replace('target = "ill"', 'target = ["ill", "sex"]')
    data = read(tmp_path, ROWS[:2], schema=schema)
    assert data.train.targets.tolist() == [[0.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"header": "patient,Age,sex,ill"}, r"no column 'age' \(did you mean 'Age'\?\)"),
        ({"header": "patient,years,sex,ill"}, "no column 'age', .*it has patient, years"),
        ({"header": "patient,age,sex,ill,ill"}, "has 2 columns 'ill'"),
        ({"rows": []}, "has no rows"),
        ({"rows": [("a", "x", "f", "no")] * 3}, "3 of 3 rows cannot be used; row 1: column 'age'"),
        ({"rows": [("",)], "header": ""}, "cannot be read as a table"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_sentence(tmp_path, options, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        read(tmp_path, **options)
    assert "ward.csv" in str(error.value)


def test_a_type_that_holds_no_numbers_is_named(tmp_path):
    write(tmp_path)
    when = pa.array([1, 2], pa.timestamp("s"))
    columns = {"patient": ["a", "b"], "age": when, "sex": ["f", "m"], "ill": ["no", "yes"]}
    pa_parquet.write_table(pa.table(columns), tmp_path / "ward.parquet")
    with pytest.raises(ValueError, match=r"ward.parquet: column 'age' of type timestamp"):
        load_data(str(tmp_path / "ward.parquet"), schema=tmp_path / "schema.toml")
    (tmp_path / "ward.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"ward\.parquet cannot be read as a table"):
        load_data(str(tmp_path / "ward.parquet"), schema=tmp_path / "schema.toml")


def test_a_table_needs_a_schema_and_nothing_else_takes_one(tmp_path):
    path = write(tmp_path)
    with pytest.raises(ValueError, match=r"needs a schema .*: coinflower data schema"):
        load_data(path)
    with pytest.raises(ValueError, match="'digits' is read without a schema"):
        load_data("digits", schema=tmp_path / "schema.toml")
    with pytest.raises(ValueError, match=r"There is no file .*missing\.toml"):
        load_data(path, schema=tmp_path / "missing.toml")


def test_a_folder_of_tables_makes_one_client_of_each_file(tmp_path):
    write(tmp_path, ROWS[:2], name="a.csv")
    write(tmp_path, ROWS[2:], name="b.csv")
    write(tmp_path, ROWS[1:4], name="test.csv")
    data = load_data(str(tmp_path), schema=tmp_path / "schema.toml")
    assert (len(data.train), len(data.test)) == (5, 3)
    assert data.train.persons is not None
    assert len(set(data.train.persons)) == 4
    parts = partition(data, clients=2, how="files", seed=0)
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3, 4]]
    with pytest.raises(ValueError, match="clients = 3 must be 2, the number of files"):
        partition(data, clients=3, how="files", seed=0)


def test_what_is_held_out_for_a_trial_is_taken_from_every_files_rows(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a.csv", "b.csv"):
        rows = [(f"{name}{i // 3}", str(rng.integers(0, 99)), "f", "no") for i in range(60)]
        write(tmp_path, rows, name=name)
    whole = load_data(str(tmp_path), schema=tmp_path / "schema.toml")
    data = with_test_part(whole)
    assert len(data.test) == 24
    parts = partition(data, clients=2, how="files", seed=0)
    assert sorted(np.concatenate(parts)) == list(range(len(data.train)))
    for part, rows in zip(parts, (slice(0, 60), slice(60, 120)), strict=True):
        assert whole.train.persons is not None
        assert data.train.persons is not None
        assert set(data.train.persons[part]) <= set(whole.train.persons[rows])


def test_files_that_do_not_fit_together_are_refused(tmp_path):
    for name, width in (("a", 2), ("b", 3)):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((4, width)), y=[0, 1, 0, 1])
    with pytest.raises(ValueError, match="do not fit together"):
        load_data(str(tmp_path))


def test_data_in_one_file_cannot_be_divided_by_files(tmp_path):
    with pytest.raises(ValueError, match="partition by files needs a folder"):
        partition(load_data("digits"), clients=2, how="files", seed=0)


def test_a_schema_names_the_classes_of_an_image_folder(tmp_path):
    from PIL import Image

    write(tmp_path)
    for name in ("yes", "no", "other"):
        (tmp_path / "images" / name).mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (2, 2)).save(tmp_path / "images" / "yes" / f"{number}.png")
    Image.new("RGB", (2, 2)).save(tmp_path / "images" / "other" / "9.png")
    data = load_data(str(tmp_path / "images"), schema=tmp_path / "schema.toml")
    assert data.train.targets.tolist() == [1, 1, 1, 1]
    assert data.reading is not None
    assert "is in a folder that names no class" in data.reading.named[0]
    assert data.train.schema is not None
