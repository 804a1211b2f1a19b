"""TensorBoard and MLflow: what they are told of a run, and that no run depends on them."""

import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from coinflower.cli.main import app
from coinflower.deploy.flower.loopback import LOOPBACK, free_port
from coinflower.deploy.local import cluster, local_run
from coinflower.deploy.machines.experiment_run import ExperimentRun
from coinflower.deploy.machines.queue import ExperimentQueue
from coinflower.deploy.trackers import following
from coinflower.deploy.trackers.figures import figures_of
from coinflower.deploy.trackers.following import tracked
from coinflower.protocol.modes import Mode
from coinflower.server.journal import Journal, read_metrics
from coinflower.server.settings import Mlflow, TrackerName
from tests.support.federations import REPORT, play
from tests.support.waiting import wait_until

COUNTS = {
    "available": 3,
    "participants": 2,
    "asked": 2,
    "answered": 1,
    "dropped": 1,
    "expected_batch": 70,
    "seconds": 0.5,
    "received_bytes": 1000,
}


@pytest.fixture
def settings(prepared, tmp_path):
    terms = replace(prepared.terms, mode=Mode.COVERED)
    return replace(prepared, terms=terms, state=tmp_path / "state")


@pytest.fixture
def journal(settings):
    return Journal(settings.state, insecure=False)


@pytest.fixture
def tensorboard():
    """Have TensorBoard; return a function that reads the figures of a folder."""
    reason = "needs TensorBoard: pip install 'coinflower[tensorboard]'"
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason=reason
    )

    def read(folder):
        found = events.EventAccumulator(str(folder))
        found.Reload()
        return {
            name: [(event.step, event.value) for event in found.Scalars(name)]
            for name in found.Tags()["scalars"]
        }

    return read


@pytest.fixture
def mlflow(settings, tmp_path, monkeypatch):
    """Have MLflow with a store of files; return its client and settings that name the store."""
    # Its makers would rather have a database, which needs more packages than its client does.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name in ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_HTTP_REQUEST_MAX_RETRIES"):
        monkeypatch.setenv(name, "1")
    module = pytest.importorskip("mlflow", reason="needs MLflow: pip install 'coinflower[mlflow]'")
    uri = f"file://{tmp_path}/mlruns"
    return module.MlflowClient(tracking_uri=uri), replace(
        settings, trackers=(TrackerName.MLFLOW,), mlflow=Mlflow(uri=uri, experiment="ward")
    )


class Memory:
    """A tracker that keeps what it is told, and fails as often as it is asked to."""

    def __init__(self, failures=0):
        self.failures = failures
        self.rounds = []
        self.ended = None

    def write(self, round_, figures):
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        self.rounds.append((round_, figures))

    def close(self, state):
        self.ended = state


@pytest.fixture
def memory(settings, monkeypatch):
    """Return a function that puts a tracker in TensorBoard's place."""
    monkeypatch.setattr(following, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(following, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(following, "require_trackers", lambda _: None)

    def use(tracker):
        monkeypatch.setattr(following, "_open", lambda *_: tracker)
        return tracker, replace(settings, trackers=(TrackerName.TENSORBOARD,))

    return use


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return a function that runs `coinflower run`, whose rounds are played without training."""

    def run_cluster(prepared, **_):
        play(prepared)
        return []

    monkeypatch.setattr(local_run, "run_cluster", run_cluster)

    def run(*options):
        words = ["run", "--clients", "2", "--rounds", "3", "--json", *options]
        return CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])

    return run


ROW = {"round": 3, **COUNTS, "accuracy": 0.5}


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.TRUSTED])
def test_a_tracker_is_told_what_the_journal_says(mode):
    assert figures_of(ROW, mode) == {**COUNTS, "accuracy": 0.5}


def test_a_tracker_is_not_told_how_many_took_part_where_the_coin_is_secret():
    assert figures_of(ROW, Mode.TRUSTED) == {"available": 3, "accuracy": 0.5}


def test_metrics_of_a_task_are_among_the_figures_and_what_was_not_measured_is_not():
    row = {"round": 1, "accuracy": None, "metrics": {"auc": 0.75, "brier": 0.1, "f1": None}}
    assert figures_of(row, Mode.TRUSTED) == {"auc": 0.75, "brier": 0.1}


def test_figures_of_a_seeded_run_are_stamped(settings):
    Journal(settings.state, insecure=True).round(REPORT, {"accuracy": 0.5})
    (row,) = read_metrics(settings.state)
    assert figures_of(row, Mode.TRUSTED)["insecure"] == 1


def test_rounds_are_told_as_they_come_and_how_the_run_ended(memory, journal):
    tracker, settings = memory(Memory())
    with tracked(settings, pytest.fail):
        for round_ in (1, 2):
            journal.round(replace(REPORT, round=round_), {"accuracy": 0.5})
            wait_until(lambda known=round_: len(tracker.rounds) == known)
        journal.round(replace(REPORT, round=3), None)
        journal.status("finished", round_=3)
    assert [round_ for round_, _ in tracker.rounds] == [1, 2, 3]
    assert tracker.ended == "finished"


def test_rounds_of_an_earlier_start_are_not_told_again(memory, journal):
    tracker, settings = memory(Memory())
    journal.round(REPORT, {"accuracy": 0.5})
    with tracked(settings, pytest.fail):
        journal.round(replace(REPORT, round=2), {"accuracy": 0.5})
    assert [round_ for round_, _ in tracker.rounds] == [2]


def test_a_run_without_rounds_leaves_nothing_in_a_tracker(memory):
    tracker, settings = memory(Memory())
    with tracked(settings, pytest.fail):
        pass
    assert tracker.ended is None


def test_a_tracker_that_fails_costs_one_sentence_and_misses_nothing_once_it_works(memory, journal):
    tracker, settings = memory(Memory(failures=3))
    told = []
    with tracked(settings, told.append):
        for round_ in (1, 2, 3):
            journal.round(replace(REPORT, round=round_), {"accuracy": 0.5})
        wait_until(lambda: len(tracker.rounds) == 3)
    assert [round_ for round_, _ in tracker.rounds] == [1, 2, 3]
    assert told == [
        "The tracker tensorboard does not take the figures (OSError: [Errno 28] No space left on "
        "device); the run goes on, and its metrics.jsonl has them."
    ]


def test_a_tracker_that_hangs_does_not_keep_a_run_from_ending(memory, journal, monkeypatch):
    monkeypatch.setattr(following, "_LAST_SECONDS", 0.05)
    hangs, over = threading.Event(), threading.Event()

    class Hanging(Memory):
        def write(self, *_):
            hangs.set()
            over.wait()

    _, settings = memory(Hanging())
    told = []
    with tracked(settings, told.append):
        journal.round(REPORT, {"accuracy": 0.5})
        hangs.wait()
    over.set()
    (sentence,) = told
    assert "it takes too long" in sentence


def test_a_tracker_that_is_not_installed_is_refused_before_anything_starts(settings, monkeypatch):
    monkeypatch.setattr(following.importlib.util, "find_spec", lambda _: None)
    tracking = tracked(replace(settings, trackers=(TrackerName.MLFLOW,)), pytest.fail)
    with pytest.raises(ValueError, match=r"pip install 'coinflower\[mlflow\]'"), tracking:
        pass


def test_tensorboard_shows_the_figures_of_the_journal(settings, journal, tensorboard):
    settings = replace(settings, trackers=(TrackerName.TENSORBOARD,))
    with tracked(settings, pytest.fail):
        journal.round(REPORT, {"accuracy": 0.5})
        journal.round(replace(REPORT, round=2), None)
    found = tensorboard(settings.state / "tensorboard")
    assert found["accuracy"] == [(1, 0.5)]
    assert {name: values[1] for name, values in found.items() if len(values) == 2} == {
        name: (2, value) for name, value in COUNTS.items()
    }


def test_tensorboard_without_a_place_costs_a_sentence(settings, journal, tensorboard):
    (settings.state / "tensorboard").write_text("in the way")
    told = []
    with tracked(replace(settings, trackers=(TrackerName.TENSORBOARD,)), told.append):
        journal.round(REPORT, {"accuracy": 0.5})
    (sentence,) = told
    assert "FileExistsError" in sentence


def test_mlflow_has_terms_and_figures_and_one_run_across_starts(journal, mlflow):
    client, settings = mlflow
    with tracked(settings, pytest.fail):
        journal.round(REPORT, {"accuracy": 0.5})
        journal.status("stopped", round_=1)
    experiment = client.get_experiment_by_name("ward")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "KILLED"
    with tracked(settings, pytest.fail):
        journal.round(replace(REPORT, round=2), {"accuracy": 0.75})
        journal.status("finished", round_=2)
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == settings.terms.experiment
    assert run.data.params["mode"] == "covered"
    assert run.data.params["insecure"] == "False"
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(one.step, one.value) for one in history] == [(1, 0.5), (2, 0.75)]
    assert run.data.metrics == {**COUNTS, "accuracy": 0.75}


def test_mlflow_takes_a_metric_of_any_name(journal, mlflow):
    client, settings = mlflow
    with tracked(settings, pytest.fail):
        journal.round(REPORT, {"F₁ @ 50 %": 0.5})
    (run,) = client.search_runs([client.get_experiment_by_name("ward").experiment_id])
    assert run.data.metrics["F_ _ 50 _"] == 0.5


def test_mlflow_that_cannot_be_reached_costs_a_sentence(journal, mlflow):
    _, settings = mlflow
    uri = f"http://127.0.0.1:{free_port(LOOPBACK)}"
    told = []
    with tracked(replace(settings, mlflow=Mlflow(uri=uri)), told.append):
        journal.round(REPORT, {"accuracy": 0.5})
    (sentence,) = told
    assert sentence.startswith("The tracker mlflow does not take the figures (")


def test_the_command_feeds_the_tracker_that_it_is_asked_for(command, tmp_path, tensorboard):
    done = command("--tracker", "tensorboard", "--mode", "covered")
    assert done.exit_code == 0, done.stderr
    found = tensorboard(tmp_path / "run" / "server" / "tensorboard")
    rows = read_metrics(tmp_path / "run" / "server")
    assert found["accuracy"] == [(row["round"], pytest.approx(row["accuracy"])) for row in rows]
    assert found["asked"] == [(round_, 2) for round_ in (1, 2, 3)]


def test_what_a_tracker_lacks_is_said_beside_the_results(command, memory, monkeypatch):
    monkeypatch.setattr(cluster, "require_trackers", lambda _: None)
    memory(Memory(failures=1000))
    done = command("--tracker", "mlflow")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 3
    assert "Warning: The tracker mlflow does not take the figures" in done.stderr


def test_a_server_feeds_its_trackers_whatever_happens_to_its_superlink(memory, journal, tmp_path):
    tracker, settings = memory(Memory())
    experiment = ExperimentQueue(tmp_path / "server").enter(settings)
    for round_ in (1, 2):  # an experiment goes on with another SuperLink from its checkpoint
        run = ExperimentRun(experiment, SimpleNamespace(start_run=lambda _: 1))
        journal.round(replace(REPORT, round=round_), {"accuracy": 0.5})
        run.close()
    assert [round_ for round_, _ in tracker.rounds] == [1, 2]
