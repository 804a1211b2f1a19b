"""A schema is public, complete and strict; its hash says what it means."""

from __future__ import annotations

import pytest

from coinflower.learning.data.tables.draft import draft_schema
from coinflower.learning.data.tables.schema import Kind, load_schema

WARD = """
target = "ill"
person = "patient"

[columns.age]
kind = "number"
range = [0, 120]

[columns.sex]
kind = "category"
values = ["f", "m"]

[columns.ill]
kind = "category"
values = [0, 1]
"""


def read(tmp_path, text=WARD):
    path = tmp_path / "schema.toml"
    path.write_text(text)
    return load_schema(path)


def changed(old, new):
    assert old in WARD
    return WARD.replace(old, new)


def test_a_schema_names_the_inputs_of_a_model(tmp_path):
    schema = read(tmp_path)
    assert schema.features == [
        "age",
        "age is missing",
        "sex = f",
        "sex = m",
        "sex = (other)",
        "sex is missing",
    ]
    assert schema.needed == ["age", "sex", "ill", "patient"]
    assert schema.class_names == ("0", "1")
    assert (schema.columns["age"].origin, schema.columns["age"].unit) == (60.0, 60.0)


def test_the_hash_is_of_the_meaning_not_of_the_text(tmp_path):
    first = read(tmp_path).hash
    for same in (
        "# for all wards\n" + WARD,
        changed("range = [0, 120]", "range = [0, 120.0]\ncentre = 60\nscale = 60\n"),
        changed("values = [0, 1]", 'values = ["0", "1"]\nmissing = "indicator"'),
        WARD + '[columns.note]\nkind = "ignored"\n',
    ):
        assert read(tmp_path, same).hash == first


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("range = [0, 120]", "range = [0, 121]"),
        ("range = [0, 120]", "range = [0, 120]\ncentre = 50"),
        ("range = [0, 120]", 'range = [0, 120]\nmissing = "refused"'),
        ('["f", "m"]', '["m", "f"]'),
        ('person = "patient"', ""),
        ('person = "patient"', 'person = "patient"\nmissing_values = ["", "NA"]'),
        ("[columns.age]", "[columns.years]"),
    ],
)
def test_another_meaning_is_another_hash(tmp_path, old, new):
    assert read(tmp_path, changed(old, new)).hash != read(tmp_path).hash


def test_the_order_of_columns_is_that_of_the_inputs_and_counts(tmp_path):
    age, sex = WARD.index("[columns.age]"), WARD.index("[columns.sex]")
    ill = WARD.index("[columns.ill]")
    other = WARD[:age] + WARD[sex:ill] + WARD[age:sex] + WARD[ill:]
    assert read(tmp_path, other).hash != read(tmp_path).hash


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('["f", "m"]', "[]", r"columns\.sex\.values = \[\] must list the categories"),
        ('["f", "m"]', '["f", "f"]', "one of them twice"),
        ('["f", "m"]', "[1.5]", r"columns\.sex\.values\.0 = 1\.5 must be a text"),
        ("range = [0, 120]", "range = []", r"columns\.age\.range = \[\] must be two numbers"),
        ("range = [0, 120]", "range = [9, 9]", "must be two numbers"),
        ("range = [0, 120]", "range = [0, inf]", "must be two numbers"),
        ("range = [0, 120]", "", "must be two numbers"),
        ("range = [0, 120]", "range = [0, 120]\nscale = 0", "scale = 0 must be above 0"),
        ("range = [0, 120]", "range = [0, 120]\nscale = 1e-9", "scale = 1e-09 does not suit range"),
        ("range = [0, 120]", "range = [-1e308, 1e308]", "scale = inf does not suit range"),
        ("range = [0, 120]", "range = [0, 5e-324]", "scale = 0 does not suit range"),
        ("range = [0, 120]", 'range = ["a", 1]', r"range\.0 = 'a' must be a number"),
        (
            "range = [0, 120]",
            "rang = [0, 120]",
            r"\[columns\.age\], has an unknown key 'rang'; did",
        ),
        ('kind = "number"', 'kind = "date"', r"columns\.age\.kind = 'date'"),
        ('kind = "number"', "", r"\[columns\.age\], lacks 'kind'"),
        ('kind = "number"', 'kind = "ignored"', "range must be left out of a column of kind ignor"),
        ('"f", "m"]', '"f", "m"]\nscale = 2', "scale must be left out of a column of kind categ"),
        ('target = "ill"', "", "lacks 'target'"),
        ('target = "ill"', 'target = ""', "target must name the column"),
        ('target = "ill"', 'target = "Ill"', r"not listed in columns \(did you mean 'ill'\?\)"),
        ('target = "ill"', 'target = ["ill", "age"]', "columns of one kind"),
        ('person = "patient"', 'person = "age"', "person = 'age' must not be an input"),
        ('person = "patient"', "persons = 1", "unknown key 'persons'; did you mean 'person'"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_file_and_key(tmp_path, old, new, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        read(tmp_path, changed(old, new))
    assert "schema.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_draft_holds_names_and_no_statistic_and_has_to_be_filled_in(tmp_path):
    columns = {"age": Kind.NUMBER, "blood type": Kind.CATEGORY, "seen": Kind.IGNORED}
    draft = draft_schema(tmp_path / "ward.csv", columns, target="age", person="seen")
    assert "public knowledge" in draft
    with pytest.raises(ValueError, match=r"columns\.age\.range = \[\]"):
        read(tmp_path, draft)
    filled = draft.replace("range = []", "range = [0, 120]").replace(
        "values = []", 'values = ["A", "B"]'
    )
    schema = read(tmp_path, filled)
    assert list(schema.inputs) == ["blood type"]
    assert (schema.target, schema.person) == (("age",), "seen")


def test_a_draft_for_a_column_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--target Age: .* no such column \(did you mean 'age'"):
        draft_schema(tmp_path / "w.csv", {"age": Kind.NUMBER}, target="Age", person=None)
