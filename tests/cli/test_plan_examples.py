"""A plan for each example: what it writes is accepted by server and client as it is."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.cli.main import app
from coinflower.client.participant import Participant
from coinflower.protocol.policy import Refusal, RefusedError
from coinflower.protocol.terms import Terms
from coinflower.server.app import require_ready
from coinflower.server.settings import load_settings

EXAMPLES = Path(__file__).parents[2] / "examples"
WISHES = "--clients 4 --rounds 3 --epsilon 4 --delta 1e-3 --largest-p 0.5 --batch 40"
# By example: the public data, what the plan is told beside it, and one client's data.
PLANNED = {
    "hospital": (
        "test.csv",
        "-d 400 --schema schema.toml --task binary --model mlp --model-option widths=16,8 "
        "--unit person",
        "ward-a.csv",
    ),
    "bank": (
        "test.csv",
        "-d 800 --schema schema.toml --task regression --loss huber --clipping automatic",
        "branch-1.csv",
    ),
    "images": ("test.npz", "-d 400 --model spots:small_cnn", "clinic-1.npz"),
    "own-loss": (
        "test.csv",
        "-d 800 --schema schema.toml --task quantile:Quantile --task-option share=0.9 --model mlp",
        "depot-1.csv",
    ),
    "sequences": ("test.npz", "-d 500 --task binary --model gru --model-option words=20", "site-1"),
}


def call(arguments):
    return CliRunner().invoke(app, shlex.split(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def projects(tmp_path_factory):
    """Every example with its data, made once."""
    made = tmp_path_factory.mktemp("projects")
    for name in PLANNED:
        shutil.copytree(EXAMPLES / name, made / name, ignore=shutil.ignore_patterns("data", "runs"))
        subprocess.run([sys.executable, "make_data.py"], cwd=made / name, check=True)
    return made


@pytest.fixture
def project(projects, request, monkeypatch):
    """The folder of an example, with what its plan wrote in ``plan``."""
    folder = projects / request.param
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    public, options, _ = PLANNED[request.param]
    if not (folder / "plan").exists():
        done = call(f"plan {WISHES} --data data/{public} {options} --out plan --json")
        assert done.exit_code == 0
    return folder


def owner(project, **changes):
    """Return a client with the written policy, once its owner has filled in names."""
    (data,) = (project / "data").glob(f"{PLANNED[project.name][2]}*")
    policy = (project / "plan" / "policy.toml").read_text().replace("PATH/TO/MY-DATA", str(data))
    for old, new in changes.items():
        assert old in policy
        policy = policy.replace(old, new)
    (project / "plan" / "mine.toml").write_text(policy)
    ledger = project / "plan" / "ledger.db"
    if not ledger.exists():
        Ledger.create(ledger, "MY-DATA").close()
    return Participant.open(project / "plan" / "mine.toml")


@pytest.mark.parametrize("project", PLANNED, indirect=True)
def test_server_and_client_accept_what_a_plan_writes(project):
    settings = load_settings(project / "plan" / "settings.toml")
    require_ready(settings)
    client = owner(project)
    assert client.enrol(settings.terms) == client.policy.declared_size
    client.ledger.close()


@pytest.mark.parametrize("project", ["hospital"], indirect=True)
def test_a_client_that_counts_records_refuses_a_plan_for_persons(project):
    terms = load_settings(project / "plan" / "settings.toml").terms
    client = owner(
        project, **{'unit = "person"': "", "declared_size = 400": "declared_size = 4000"}
    )
    with pytest.raises(RefusedError) as refused:
        client.enrol(terms)
    assert refused.value.refusal is Refusal.UNIT
    client.ledger.close()


@pytest.mark.parametrize("project", ["hospital", "bank", "images", "sequences"], indirect=True)
def test_a_simulation_plays_the_plan_of_an_example(project, tmp_path):
    plan = project / "plan" / "plan.json"
    done = call(
        f"simulate many-small --plan {plan} --data data --partition files --out {tmp_path / 'run'} "
        "--evaluate-every 3 --json"
    )
    found, planned = json.loads(done.stdout), json.loads(plan.read_text())
    terms = Terms.from_fields(planned["terms"])
    assert (found["unit"], found["task"]) == (terms.unit, terms.task)
    assert found["sigma"] == terms.noise_multiplier
    assert found["epsilon"] <= planned["total_epsilon"]
    assert found["metrics"]


@pytest.mark.parametrize("project", ["hospital", "bank"], indirect=True)
def test_the_trial_of_a_plan_states_all_that_is_learned(project):
    planned = json.loads((project / "plan" / "plan.json").read_text())
    (trial,) = planned["commands"]["trial"]
    stated = {
        "hospital": "--schema schema.toml --unit person --task binary --model-option widths=16,8",
        "bank": "--schema schema.toml --clipping automatic --task regression "
        "--task-option loss=huber",
    }
    assert stated[project.name] in trial


def test_the_same_model_is_planned_whether_its_public_data_is_here_or_only_described(
    projects, monkeypatch
):
    monkeypatch.chdir(projects / "sequences")
    model = "--model gru --model-option words=20 --task binary -d 500 --json"
    seen = call(f"plan {WISHES} --data data/test.npz {model}")
    told = call(f"plan {WISHES} --data elsewhere.npz --row-shape 16 {model}")
    seen_terms, told_terms = (json.loads(each.stdout)["terms"] for each in (seen, told))
    assert seen_terms == told_terms
    assert seen_terms["row_shape"] == [16]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--data elsewhere.npz", "state the shape of a record"),
        ("--data elsewhere.npz --row-shape 12", "State --classes"),
        ("--row-shape three --data elsewhere.npz", "must be integers"),
        ("--schema schema.toml", "goes with a public table that is here"),
        ("--data data/test.csv", "needs a schema"),
        ("--data data/test.csv --schema schema.toml --row-shape 3", "must be left out"),
        ("--data data/test.csv --schema schema.toml --classes 7", "does not suit"),
        ("--data data/test.csv --schema schema.toml --model paper-cnn", "cannot take the rows"),
        ("--unit family", "unit = 'family' is unknown"),
    ],
)
def test_a_plan_for_what_cannot_be_learned_is_refused_with_a_sentence(
    projects, monkeypatch, options, complaint
):
    monkeypatch.chdir(projects / "bank")
    with pytest.raises(ValueError, match=complaint):
        call(f"plan {WISHES} -d 800 {options}")
