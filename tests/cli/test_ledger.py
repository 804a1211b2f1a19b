"""The commands that start a ledger and look at it."""

import csv
import io
import json
import sqlite3
import subprocess

import pytest
from typer.testing import CliRunner

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.cli.main import app

TERMS = Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a folder [red]" / "ledger.db"
    path.parent.mkdir()
    with Ledger.create(path, "ward 7") as ledger:
        ledger.reserve("trial [bold]", TERMS, 10, Budget(epsilon=50.0, delta=1e-5))
        ledger.flip_all("trial [bold]", range(1, 5))
    return path


@pytest.fixture
def run(program):
    """Return a function that runs a command as a user's shell would see it."""
    return lambda *words: subprocess.CompletedProcess(words, *program("ledger", *words))


def call(*arguments):
    """Run a command in this process; what it raises comes up here."""
    command = ["ledger", *map(str, arguments)]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def tamper(path, statement):
    """Change a ledger behind its back, and leave no trace of how."""
    outside = sqlite3.connect(path)
    guard = "entries_are_never_changed"
    (made,) = outside.execute("SELECT sql FROM sqlite_master WHERE name = ?", [guard]).fetchone()
    outside.execute(f"DROP TRIGGER {guard}")
    outside.execute(statement)
    outside.execute(made)
    outside.commit()
    outside.close()


def assert_refused(done, *named):
    assert done.returncode == 2
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    for part in named:
        assert str(part) in sentence


def test_a_new_ledger_is_empty_and_in_order(tmp_path):
    path = tmp_path / "new.db"
    assert "ward 8" in call("create", path, "--data-set", "ward 8")
    shown = json.loads(call("show", path, "--json"))
    assert (shown["data_set"], shown["epsilon"], shown["rounds"]) == ("ward 8", 0, 0)
    assert json.loads(call("verify", path, "--json"))["entries"] == 0


def test_create_answers_in_json_too(tmp_path):
    path = tmp_path / "new.db"
    made = json.loads(call("create", path, "--data-set", "x", "--json"))
    assert made == {"path": str(path), "data_set": "x"}


def test_a_ledger_is_never_overwritten(run, path):
    before = path.read_bytes()
    assert_refused(run("create", path, "--data-set", "x"), path, "never overwritten")
    assert path.read_bytes() == before


def test_show_adds_up(path):
    shown = json.loads(call("show", path, "--delta", "1e-5", "--json"))
    assert shown["epsilon"] == epsilon_after([(TERMS, 4)], 1e-5)
    assert shown["committed_epsilon"] == epsilon_after([(TERMS, 10)], 1e-5)
    assert (shown["rounds"], shown["delta"], shown["secure"]) == (4, 1e-5, True)
    (experiment,) = shown["experiments"]
    assert experiment["experiment"] == "trial [bold]"
    assert (experiment["rounds"], experiment["committed_rounds"]) == (4, 10)
    assert {key: experiment[key] for key in ("scheme", "p", "q", "d", "sigma")} == {
        "scheme": "certified",
        "p": 0.5,
        "q": 0.1,
        "d": 20,
        "sigma": 1.5,
    }


def test_show_tells_people_the_same_and_takes_no_name_for_markup(path):
    shown = " ".join(call("show", path).split())
    assert "trial [bold]" in shown.replace(" │", "").replace("│ ", "")
    assert f"Spent: ε = {epsilon_after([(TERMS, 4)], 1e-5):.6g} at δ = 1e-05" in shown


def test_show_stamps_seeded_coins(tmp_path):
    class Seeded:
        insecure = True

        def coin(self, _p):
            return True

    path = tmp_path / "seeded.db"
    with Ledger.create(path, "x", coins=Seeded()) as ledger:
        ledger.reserve("trial", TERMS, 1, Budget(epsilon=50.0, delta=1e-5))
    assert "INSECURE" in call("show", path)
    assert json.loads(call("show", path, "--json"))["secure"] is False


def test_verify_names_the_last_hash(path):
    with Ledger.open(path, read_only=True) as ledger:
        expected = ledger.verify()
    told = json.loads(call("verify", path, "--json"))
    assert told == {"valid": True, "entries": 5, "head": expected.head, "backup_made": None}
    assert call("verify", path) == f"{path}: 5 entries, all in order. Head {expected.head}\n"


def test_export_holds_every_entry(path, tmp_path):
    rows = list(csv.DictReader(io.StringIO(call("export", path))))
    assert [row["kind"] for row in rows] == ["commit"] + ["charge"] * 4
    for flags in (("--format", "json"), ("--json",)):
        exported = json.loads(call("export", path, *flags))
        assert [entry["seq"] for entry in exported["entries"]] == [1, 2, 3, 4, 5]
    call("export", path, "--out", tmp_path / "all.csv")
    assert (tmp_path / "all.csv").read_text() == call("export", path)


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_looking_changes_nothing(path, command):
    before = path.read_bytes()
    call(command, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_tampered_ledger_is_refused(run, path, command):
    tamper(path, "UPDATE entries SET coin = 1 - coin WHERE seq = 3")
    assert_refused(run(command, path), path, "entry 3 was changed", "Keep the file")


def test_a_ledger_without_its_guards_is_refused(run, path):
    outside = sqlite3.connect(path)
    outside.execute("DROP TRIGGER entries_are_never_changed")
    outside.commit()
    outside.close()
    assert_refused(run("verify", path), "its tables, indexes or triggers are not those of a ledger")


def test_sums_that_were_edited_are_found(run, path):
    tamper(path, "UPDATE tallies SET charged = 1")
    assert_refused(run("verify", path), "its sums do not agree")


def test_a_missing_ledger_is_not_made_up(run, tmp_path):
    assert_refused(run("show", tmp_path / "gone.db"), "There is no ledger at", "gone.db")
    assert not list(tmp_path.iterdir())


def test_another_file_is_not_a_ledger(run, tmp_path):
    (tmp_path / "notes.txt").write_text("hello" * 1000)
    assert_refused(run("verify", tmp_path / "notes.txt"), "notes.txt")


def test_a_delta_outside_its_range_is_refused(run, path):
    assert_refused(run("show", path, "--delta", "2"), "delta = 2.0", "between 0 and 1")


def test_an_unwritable_export_is_told_in_one_sentence(run, path, tmp_path):
    (tmp_path / "file").touch()
    for target in (tmp_path / "no" / "such.csv", tmp_path / "file" / "x.csv", tmp_path):
        assert_refused(run("export", path, "--out", target), target)


def test_a_backup_says_what_it_is_and_is_adopted_on_purpose_only(run, path, tmp_path):
    copy = tmp_path / "backup.db"
    made = json.loads(call("backup", path, copy, "--json"))
    assert made["entries"] == 5
    assert "5 entries" in call("backup", path, tmp_path / "another.db")
    for command in (["verify"], ["show"]):
        assert f"This is a backup, made at {made['backup_made']}" in call(*command, copy)
        assert json.loads(call(*command, copy, "--json"))["backup_made"] == made["backup_made"]
        assert json.loads(call(*command, path, "--json"))["backup_made"] is None
    explained = CliRunner().invoke(app, ["explain", str(copy)], catch_exceptions=False)
    assert "This is a backup, made at" in explained.stdout
    assert_refused(run("release", copy, "trial"), "is a backup", "takes no charge")
    assert_refused(run("adopt", copy), "5 entries", made["backup_made"], "--yes")
    assert_refused(run("release", copy, "trial"), "is a backup")
    assert "is now a ledger" in call("adopt", copy, "--yes")
    call("release", copy, "trial")
    assert_refused(run("adopt", path, "--yes"), "is a ledger already")


def test_a_witness_finds_a_ledger_that_was_set_back(run, path, tmp_path):
    older, witness = tmp_path / "older.db", tmp_path / "witness"
    older.write_bytes(path.read_bytes())
    assert "has seen the 5 entries" in call("witness", path, witness)
    with Ledger.open(path, witness=witness) as ledger:
        ledger.flip("trial [bold]", 5)
    call("verify", path, "--witness", witness)
    assert_refused(run("verify", older, "--witness", witness), "was set back", witness)
    assert_refused(run("witness", older, witness), "was set back")
    assert_refused(run("verify", path, "--witness", tmp_path / "none"), "There is no witness")


def policy_for(path, delta):
    """Write a policy for a ledger with a budget at this δ."""
    policy = path.parent / "policy.toml"
    policy.write_text(
        'data_set = "ward 7"\ndata = "digits"\ndeclared_size = 20\nmodes = ["trusted"]\n'
        f"ledger = {json.dumps(str(path))}\n"
        "largest_p = 0.5\nlargest_q = 0.1\nlargest_clip_norm = 1.0\n"
        f'least_noise_multiplier = 1.5\nmodels = ["digits"]\n\n[budget]\nepsilon = 50.0\n'
        f"delta = {delta!r}\n"
    )
    return policy


def test_show_reports_at_the_delta_of_the_policy(run, path):
    policy = policy_for(path, 1e-3)
    shown = json.loads(call("show", path, "--policy", policy, "--json"))
    assert (shown["delta"], shown["budget_epsilon"]) == (1e-3, 50.0)
    assert shown["epsilon"] == epsilon_after([(TERMS, 4)], 1e-3)
    told = call("show", path, "--policy", policy)
    assert f"Spent: ε = {rounded_up(shown['epsilon'], 6)} at δ = 0.001" in told
    assert f"left: ε = {rounded_down(50.0 - shown['committed_epsilon'], 6)}." in told
    assert_refused(run("show", path, "--policy", policy, "--delta", "1e-5"), "delta = 0.001")


def test_a_pause_holds_until_it_is_resumed(path):
    assert "is paused since" in call("pause", path)
    since = json.loads(call("pause", path, "--json"))["paused_since"]
    assert json.loads(call("show", path, "--json"))["paused_since"] == since
    assert f"Paused since {since}" in call("show", path)
    with Ledger.open(path) as ledger, pytest.raises(LedgerError):
        ledger.flip_all("trial [bold]", [5])
    assert "is resumed" in call("resume", path)
    assert json.loads(call("resume", path, "--json"))["was_paused"] is False
    with Ledger.open(path) as ledger:
        ledger.flip_all("trial [bold]", [5])


def test_an_experiment_is_left_for_good_and_only_on_purpose(run, path):
    before = path.read_bytes()
    assert_refused(run("leave", path, "trial"), "cannot be undone", "--yes")
    assert_refused(run("leave", path, "other", "--yes"), "No experiment begins with 'other'")
    assert path.read_bytes() == before
    assert "left for good" in call("leave", path, "trial", "--yes")
    call("resume", path)
    shown = json.loads(call("show", path, "--json"))
    assert list(shown["left"]) == ["trial [bold]"]
    assert (shown["rounds"], shown["experiments"][0]["committed_rounds"]) == (4, 4)
    with Ledger.open(path) as ledger, pytest.raises(LedgerError):
        ledger.reserve("trial [bold]#terms", TERMS, 1, Budget(epsilon=50.0, delta=1e-5))


@pytest.mark.parametrize("command", [["pause"], ["resume"], ["leave", "trial", "--yes"]])
def test_nothing_is_stopped_where_there_is_no_ledger(run, tmp_path, command):
    missing, wrong = tmp_path / "missing.db", tmp_path / "wrong.db"
    wrong.write_text("a letter to my aunt")
    for file in (missing, wrong):
        assert_refused(run(command[0], file, *command[1:]), file)
    assert not missing.exists()
    assert wrong.read_text() == "a letter to my aunt"
