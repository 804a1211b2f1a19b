"""`coinflower data`, and files as data of `run` and `simulate`: what is read, what is wrong."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from coinflower.accounting.errors import UserError
from coinflower.protocol.policy import load_policy
from coinflower.protocol.unit import Unit
from tests.support import scans, tables
from tests.support.builders import policy_fields

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(program, monkeypatch, tmp_path):
    """The program, in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return program


@pytest.fixture
def ward(tmp_path):
    """A ward's table with some rows that are special, its schema and a policy."""
    rows = [*tables.ward_rows(9), "x,140,f,no", "y,,d,yes", "z,old,f,no"]
    tables.write_ward(tmp_path / "ward.csv", rows)
    tables.write_schema(tmp_path / "schema.toml")
    fields = policy_fields(data="ward.csv", schema="schema.toml", declared_size=20)
    (tmp_path / "policy.toml").write_text(tomli_w.dumps(fields))
    return tmp_path


def test_check_tells_the_owner_what_would_be_read(command, ward):
    code, out, err = command("data", "check", "policy.toml", "--json")
    assert (code or 0, err) == (0, "")
    found = json.loads(out)
    assert (found["rows"], found["refused"], found["records"]) == (12, 1, 11)
    assert (found["persons"], found["most_rows_of_a_person"], found["unit"]) == (5, 3, "record")
    assert found["clamped"] == {"age": 1}
    assert found["unknown"] == {"sex": 1}
    assert found["missing"] == {"age": 1, "sex": 0}
    assert found["named"] == ["row 12: column 'age' = 'old' is not a number"]
    assert found["targets"] == "one of 2 classes"
    assert not (ward / "ledger.db").exists()
    code, out, _ = command("data", "check", "policy.toml")
    assert "12 rows, of which 1 cannot be used" in out
    assert "This client has 11 records and declares at most 20 records." in out
    assert "They are of 5 persons. Nobody has more than 3 of them." in out
    assert "ε protects one record." in out
    assert f"Read by the schema with hash {found['schema']}." in out.replace("\n", "")
    assert "none of it is sent" in out


def test_check_counts_persons_where_they_are_protected(command, ward):
    fields = policy_fields(data="ward.csv", schema="schema.toml", declared_size=5, unit="person")
    (ward / "policy.toml").write_text(tomli_w.dumps(fields))
    code, out, _ = command("data", "check", "policy.toml")
    assert not code
    assert "This client has 11 records and declares at most 5 persons." in " ".join(out.split())
    assert "ε protects one person, with all of that person's records" in " ".join(out.split())
    (ward / "policy.toml").write_text(tomli_w.dumps(fields | {"declared_size": 4}))
    code, out, err = command("data", "check", "policy.toml")
    assert (code, out) == (2, "")
    assert "has 5 persons, more than the declared 4" in err


def test_check_works_for_data_that_is_no_table(command, ward):
    fields = policy_fields(data="digits", declared_size=2000)
    (ward / "policy.toml").write_text(tomli_w.dumps(fields))
    code, out, _ = command("data", "check", "policy.toml")
    assert not code
    assert "1437 rows, of which 0 cannot be used" in out
    assert "Inputs of a record: 1 x 8 x 8 float32" in out


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema": None}, "needs a schema"),
        ({"schema": "no.toml"}, "There is no file"),
        ({"declared_size": 5}, "11 records, more than the declared 5"),
        ({"data": "nothing.csv"}, "'nothing.csv' does not exist"),
        ({"data": "json:dumps"}, "runs only if the policy lists it"),
    ],
)
def test_what_is_wrong_with_data_is_one_sentence(command, ward, changes, sentence):
    fields = policy_fields(data="ward.csv", schema="schema.toml", declared_size=20) | changes
    kept = {key: value for key, value in fields.items() if value is not None}
    (ward / "policy.toml").write_text(tomli_w.dumps(kept))
    code, out, err = command("data", "check", "policy.toml")
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_draft_has_the_columns_and_says_where_figures_should_come_from(command, ward):
    code, out, err = command("data", "schema", "ward.csv", "--target", "ill")
    assert not code
    assert '[columns.patient]\nkind = "category"' in out
    assert 'target = "ill"' in out
    assert "public knowledge" in out
    assert "public knowledge" in err
    for private in ("140", "p0-1", "old", "yes"):
        assert private not in out
    command("data", "schema", "ward.csv", "--target", "ill", "--out", "draft.toml")
    assert (ward / "draft.toml").read_text() == out
    code, _, err = command("data", "schema", "ward.csv", "--out", "draft.toml")
    assert code == 2
    assert "exists; choose another file" in err


def quantiles(low, middle, high):
    return {
        level: {"value": value, "low": value, "high": value}
        for level, value in (("0.05", low), ("0.5", middle), ("0.95", high))
    }


def published(tmp_path, **columns):
    path = tmp_path / "statistics.json"
    path.write_text(json.dumps({"columns": columns}))
    return path


def test_a_draft_takes_figures_from_published_statistics_and_says_so(command, ward):
    counts = {"f": {"value": 5.0}, "m": {"value": -1.0}, "(other)": {}, "(missing)": {}}
    ages = {"edges": [0.0, 60.0, 120.0], "quantiles": quantiles(20.00012, 41.0, 60.0)}
    file = published(ward, age={"histogram": ages}, sex={"counts": counts})
    code, out, err = command("data", "schema", "ward.csv", "--target", "ill", "--statistics", file)
    assert not code
    assert "costs nothing more" in out.replace("\n# ", " ")
    columns = tomllib.loads(out)["columns"]
    assert columns["age"] == {"kind": "number", "range": [0, 100], "centre": 41, "scale": 20}
    assert columns["sex"] == {"kind": "category", "values": ["f", "m"]}
    assert columns["ill"]["values"] == []
    assert "predictable" not in err


def test_a_mean_is_a_centre_and_noise_says_no_more_than_the_range(command, ward):
    noise = {"edges": [0.0, 120.0], "quantiles": quantiles(None, None, None)}
    for figures, expected in (
        ({"mean": {"value": 40.0, "standard_error": 1.0}}, {"centre": 40, "range": []}),
        ({"mean": {"value": None, "standard_error": None}}, {"range": []}),
        ({"histogram": noise}, {"range": [0, 120]}),
    ):
        out = command("data", "schema", "ward.csv", "--statistics", published(ward, age=figures))[1]
        assert tomllib.loads(out)["columns"]["age"] == {"kind": "number", **expected}


def test_a_draft_from_a_seeded_run_is_stamped(command, ward):
    (ward / "seeded.json").write_text('{"columns": {}, "insecure": true}')
    code, _, err = command("data", "schema", "ward.csv", "--statistics", "seeded.json")
    assert not code
    assert "predictable" in err


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read"),
        ("age = 3", "is no JSON"),
        ("[]", "holds no statistics"),
        ('{"columns": {"age": 3}}', "'age' are not what"),
        ('{"columns": {"age": {}}}', "'age' are not what"),
        ('{"columns": {"age": {"mean": {"value": NaN}}}}', "'age' are not what"),
        ('{"columns": {"sex": {"counts": {}}}}', "'sex' are not what"),
        ('{"columns": {"sex": {"counts": {"\\ud800": 1}}}}', "'sex' are not what"),
        ('{"columns": {"agee": {"mean": {"value": 1}}}}', "a column 'agee'"),
    ],
)
def test_what_are_no_statistics_of_the_table_is_refused(command, ward, content, complaint):
    if content is not None:
        (ward / "statistics.json").write_text(content)
    code, out, err = command("data", "schema", "ward.csv", "--statistics", "statistics.json")
    assert (code, out) == (2, "")
    assert complaint in err


def test_the_hash_is_what_terms_have(command, ward):
    code, out, _ = command("data", "hash", "schema.toml", "--json")
    assert not code
    found = json.loads(out)
    assert found["hash"] == tables.write_schema(ward / "schema.toml")
    assert len(found["inputs"]) == 6
    assert command("data", "hash", "schema.toml")[1].startswith(found["hash"])


def test_a_draft_of_what_is_no_table_is_refused(command, ward):
    code, _, err = command("data", "schema", "nothing.csv")
    assert code == 2
    assert "cannot be read as a table" in err


@pytest.fixture
def wards(tmp_path):
    """Four wards in a folder, and their schema."""
    for index in range(4):
        tables.write_ward(tmp_path / "wards" / f"w{index}.csv", tables.ward_rows(60, seed=index))
    tables.write_schema(tmp_path / "schema.toml")
    return tmp_path


def test_run_makes_every_file_one_client(command, wards, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where the server's process finds the model
    code, out, err = command(
        *("run", "--data", "wards", "--partition", "files", "--schema", "schema.toml"),
        *("--model", tables.MODEL, "--rounds", 3, "--out", "out", "--json"),
    )
    assert not code, err
    found = json.loads(out)
    assert len(found["clients"]) == 4
    assert found["accuracy"] is not None
    assert sum(client["samples"] for client in found["clients"]) == 192
    terms = json.loads((wards / "out" / "terms.json").read_text())
    assert terms["schema"] == tables.write_schema(wards / "schema.toml")
    with np.load(wards / "out" / "test.npz") as held_out:
        assert len(held_out["y"]) == 48


def test_run_protects_persons_if_asked_to(command, wards):
    code, out, err = command(
        *("run", "--data", "wards", "--partition", "files", "--schema", "schema.toml"),
        *("--model", "linear", "--unit", "person", "--rounds", 2, "--epsilon", 4, "--out", "out"),
    )
    assert not code, err
    assert "ε is for one person, with all of that person's records in this data set." in out
    found = json.loads((wards / "out" / "results.json").read_text())
    assert found["unit"] == "person"
    assert sum(client["samples"] for client in found["clients"]) == 64  # of 80, who have 3 rows
    for index, client in enumerate(found["clients"]):
        assert 0 < client["epsilon"] <= 4
        policy = load_policy(wards / "out" / "clients" / f"client-{index}.toml")
        assert policy.unit is Unit.PERSON
        assert policy.declared_size == client["samples"]
    assert json.loads((wards / "out" / "terms.json").read_text())["unit"] == "person"


def test_simulate_makes_every_file_one_client(command, wards):
    tables.write_ward(wards / "wards" / "test.csv", tables.ward_rows(30, seed=9))
    code, out, err = command(
        *("simulate", "many-small", "--data", "wards", "--partition", "files"),
        *("--schema", "schema.toml", "--model", tables.MODEL, "--iterations", 3, "--json"),
    )
    assert not code, err
    found = json.loads(out)
    assert (found["clients"], found["d"], found["smallest_d"]) == (4, 60, 60)
    assert found["accuracy"] is not None


def test_run_fetches_public_data_only_if_told_to(command, monkeypatch):
    asked = []

    def load(spec, *, download, **_):
        asked.append((spec, download))
        raise UserError("no network")

    monkeypatch.setattr("coinflower.learning.data.loading.load_named", load)
    for arguments in ([], ["--download"]):
        assert command("run", "--data", "cifar10", *arguments)[0] == 2
    assert asked == [("cifar10", False), ("cifar10", True)]


@pytest.fixture
def radiology(tmp_path, monkeypatch):
    """Three files of scans with reports in a folder."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "scans").mkdir()
    for index in range(3):
        np.savez(tmp_path / "scans" / f"{index}.npz", **scans.arrays(30, seed=index))
    return tmp_path


def test_run_trains_on_records_of_several_arrays(command, radiology):
    code, out, err = command(
        *("run", "--data", "scans", "--partition", "files", "--model", scans.BOOKED),
        *("--rounds", 2, "--out", "out", "--json"),
    )
    assert not code, err
    assert json.loads(out)["accuracy"] is not None
    with np.load(radiology / "out" / "test.npz") as held_out:
        assert held_out["x0"].shape == (18, 3, 4, 4)
        assert held_out["x1"].shape == (18, 5)


def test_simulate_trains_on_records_of_several_arrays(command, radiology):
    code, out, err = command(
        *("simulate", "many-small", "--data", "scans", "--partition", "files"),
        *("--model", scans.PER_RECORD, "--iterations", 3, "--json", "--out", "out"),
    )
    assert not code, err
    assert json.loads(out)["accuracy"] is not None


def test_check_names_all_arrays(command, ward):
    scans.write_npy(ward / "scans", 7)
    (ward / "policy.toml").write_text(tomli_w.dumps(policy_fields(data="scans")))
    code, out, err = command("data", "check", "policy.toml")
    assert not code, err
    assert "Inputs of a record: 3 x 4 x 4 uint8 and 5 int64. Targets: one of 2 classes" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "wards", "--partition", "files"], "needs a schema"),
        (
            ["--data", "wards", "--schema", "schema.toml", "--partition", "files", "--clients", 3],
            "clients = 3 must be 4, the number of files",
        ),
        (["--partition", "files"], "partition by files needs a folder"),
        (["--unit", "nobody"], "unit = 'nobody' is unknown; choose one of record, person."),
        (["--unit", "person"], "digits does not say whose its rows are"),
        (["--data", "digits", "--schema", "schema.toml"], "'digits' is read without a schema"),
        (
            ["--data", "wards", "--schema", "schema.toml", "--model", "digits"],
            "cannot take the rows of 6 values",
        ),
    ],
)
def test_what_does_not_go_together_in_a_run_is_one_sentence(command, wards, arguments, sentence):
    code, out, err = command("run", "--rounds", 2, *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert not (wards / "runs").exists()
