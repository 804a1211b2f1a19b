"""What is submitted to a server: taken once, as it is then, and kept."""

import os
import re
from dataclasses import replace

import pytest
import tomli_w

from coinflower.deploy.gateway.config import largest_body
from coinflower.deploy.machines.experiment import Experiment
from coinflower.deploy.machines.queue import ExperimentQueue, largest_body_of
from coinflower.deploy.machines.standing import standing
from coinflower.protocol.modes import Mode
from coinflower.server.checkpoint import CheckpointFolder
from coinflower.server.journal import Journal, read_metrics
from coinflower.server.settings import Settings
from tests.support.builders import make_terms, terms_fields, write_images
from tests.support.federations import REPORT

CLOCK = {"round_seconds": 9.0}
SHARE = {"enough_share": 0.5}


@pytest.fixture
def folder(tmp_path):
    """The folder of a server that was started before."""
    made = tmp_path / "superlink"
    made.mkdir()
    (made / "server.json").write_text("{}")
    return made


@pytest.fixture
def queue(folder):
    return ExperimentQueue(folder)


@pytest.fixture
def written(tmp_path):
    """Return a function that writes settings."""

    def write(name="trial", *, terms=None, **changes):
        fields = terms_fields(experiment=name, **(terms or {}))
        fields["mode"] = str(fields["mode"])
        path = tmp_path / "settings.toml"
        path.write_text(tomli_w.dumps({"test_data": "digits", **changes, "terms": fields}))
        return path

    return write


def refused(queue, path, match):
    before = queue.all()
    with pytest.raises(ValueError, match=match):
        queue.submit(path)
    assert queue.all() == before


def test_what_is_submitted_waits_its_turn_with_a_state_of_its_own(queue, written, folder):
    queue.submit(written("b"))
    queue.submit(written("a", state="elsewhere"))
    b, a = queue.all()
    assert (b.name, a.name) == ("b", "a")
    assert b.settings.state == folder / "experiments" / "b" / "state"
    assert a.settings.state == folder.parent / "elsewhere"
    assert standing(b, [])["state"] == "queued"


def test_a_file_that_changes_later_changes_nothing(queue, written):
    submitted = queue.submit(written(least_clients=3))
    written("another", least_clients=1)
    assert queue.get("trial") == submitted
    assert submitted.settings.least_clients == 3


def test_a_path_of_data_keeps_its_meaning_wherever_the_server_works(
    queue, written, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "public.npz", 20)
    queue.submit(written(test_data="public.npz"))
    assert queue.get("trial").settings.test_data == str(tmp_path / "public.npz")


def test_the_same_terms_are_the_same_experiment_to_clients(queue, written):
    queue.submit(written())
    refused(queue, written(reply_seconds=9.0), "has the same terms.*coinflower server resume trial")


def test_two_experiments_of_one_name_are_refused(queue, written):
    queue.submit(written())
    refused(queue, written(terms={"rounds": 9}), "Another experiment is named trial")


def test_two_experiments_with_one_state_are_refused(queue, written):
    queue.submit(written("a", state="state"))
    refused(queue, written("b", state="./state"), "Experiment a has the same state")


@pytest.mark.parametrize(
    "state",
    ["superlink", "superlink/experiments", "superlink/experiments/other/state", "link/nodes/.."],
)
def test_a_state_in_a_folder_that_the_server_uses_is_refused(queue, written, tmp_path, state):
    (tmp_path / "superlink" / "nodes").mkdir()
    (tmp_path / "link").symlink_to("superlink")
    refused(queue, written(state=state), "is a folder of the server's own")


def test_a_state_that_holds_an_experiment_is_not_begun_anew(queue, written, tmp_path):
    CheckpointFolder(tmp_path / "state", "0" * 64).use_rounds_through(3)
    refused(queue, written(state="state"), "already holds an experiment")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"least_client": 2}, "did you mean 'least_clients'"),
        ({"test_data": "nowhere.npz"}, "does not exist"),
        ({"terms": {"classes": 3}}, "classes|targets|labels"),
        ({"terms": {"model": "unheard-of"}}, "unheard-of"),
        ({"trackers": ["tensorboards"]}, "trackers"),
    ],
)
def test_what_could_not_run_is_refused_before_it_is_queued(queue, written, changes, sentence):
    refused(queue, written(**changes), sentence)
    assert not list(queue._folder.glob("*/*"))


@pytest.mark.parametrize("name", ["../outside", "..", ".lock", "a/b", "/tmp/a", "a\n", "<b>", ""])
def test_a_name_that_is_no_folder_of_its_own_is_refused(queue, written, folder, name):
    refused(queue, written(name), "letters, digits, dots, dashes")
    assert sorted(path.name for path in folder.rglob("*")) == ["server.json"]


def test_a_gateway_elsewhere_is_set_up_for_the_largest_model_still_to_run(queue, written, folder):
    small = queue.submit(written("small", terms={"model": "digits"}))
    terms = replace(small.settings.terms, experiment="large", model="paper-cnn")
    large = queue.enter(replace(small.settings, terms=terms, state=folder / "large"))
    assert largest_body(large.settings.terms) > largest_body(small.settings.terms)
    assert largest_body_of(small.settings, folder) == largest_body(large.settings.terms)
    Journal(large.settings.state, insecure=False).status("finished", round_=8)
    assert largest_body_of(small.settings, folder) == largest_body(small.settings.terms)


def test_a_folder_where_no_server_ever_was_is_refused(written, tmp_path):
    with pytest.raises(ValueError, match="No server was ever started in"):
        ExperimentQueue(tmp_path / "typo").submit(written())
    assert not (tmp_path / "typo").exists()


def test_another_user_is_told_to_be_the_servers(queue, written, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    refused(queue, written(), "belongs to user")


def test_rounds_are_read_again_only_if_there_are_more(queue, written, monkeypatch):
    reads = []
    monkeypatch.setattr(
        "coinflower.deploy.machines.standing.read_metrics",
        lambda state: reads.append(state) or read_metrics(state),
    )
    one = queue.submit(written())
    journal = Journal(one.settings.state, insecure=False)
    for rounds in (1, 2):
        journal.round(replace(REPORT, round=rounds), {"accuracy": rounds / 4})
        found = [standing(one, []) for _ in range(3)]
        assert [each["round"] for each in found] == [rounds] * 3
        assert found[-1]["accuracy"] == rounds / 4
        assert len(reads) == rounds


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "cannot be used"),
        ("[]", "must be a table"),
        ('{"number": 1}', "lacks 'submitted', 'held', 'error'"),
        ('{"number": "1", "submitted": "", "held": false, "error": ""}', "number = '1' must be"),
    ],
)
def test_a_damaged_entry_is_named(queue, written, content, sentence):
    path = queue.submit(written()).folder / "experiment.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(path)) + f".*{sentence}"):
        queue.all()


def test_a_stop_and_a_failure_last_until_the_experiment_is_resumed(queue, written, folder):
    queue.submit(written())
    queue.hold("trial")
    assert standing(ExperimentQueue(folder).get("trial"), [])["state"] == "stopped"
    queue.note_failure("trial", "out of memory")
    queue.release("trial")
    assert queue.get("trial").is_due
    queue.note_failure("trial", "out of memory")
    found = standing(queue.get("trial"), [])
    assert (found["state"], found["last_error"]) == ("failed", "out of memory")
    queue.release("trial")
    assert queue.get("trial").is_due


def test_what_is_complete_is_neither_stopped_nor_resumed(queue, written):
    made = queue.submit(written())
    Journal(made.settings.state, insecure=False).status("finished", round_=8)
    for change in (queue.hold, queue.release):
        with pytest.raises(ValueError, match="Experiment trial is complete"):
            change("trial")
    refused(queue, written(), "has the same terms")


def test_an_unknown_name_is_answered_with_those_there_are(queue, written):
    queue.submit(written("a"))
    with pytest.raises(ValueError, match="has no experiment 'b'; there are a"):
        queue.hold("b")


def test_a_submission_that_was_cut_short_is_none(queue, written, folder):
    (folder / "experiments" / "trial").mkdir(parents=True)
    (folder / "experiments" / "trial" / "settings.toml").write_text("half")
    assert queue.all() == []
    queue.submit(written())
    assert [one.name for one in queue.all()] == ["trial"]


def test_a_server_may_be_started_again_with_other_settings_for_the_same_terms(queue, written):
    first = queue.submit(written(state="state"))
    queue.note_failure("trial", "too few clients")
    queue.enter(replace(first.settings, least_clients=2))
    (again,) = queue.all()
    assert (again.settings.least_clients, again.error) == (2, "")
    assert again.number == first.number


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ((Mode.TRUSTED, {}), (Mode.TRUSTED, {}), True),
        ((Mode.TRUSTED, CLOCK), (Mode.TRUSTED, CLOCK), False),
        ((Mode.TRUSTED, CLOCK), (Mode.UNTRUSTED, {}), False),
        ((Mode.TRUSTED, {}), (Mode.UNTRUSTED, {}), True),
        ((Mode.TRUSTED, {}), (Mode.UNTRUSTED, CLOCK), False),
        ((Mode.TRUSTED, {}), (Mode.COVERED, SHARE), False),
        ((Mode.TRUSTED, {}), (Mode.QUIET, CLOCK), False),
        ((Mode.QUIET, CLOCK), (Mode.COVERED, SHARE), True),  # its coins are no secret
        ((Mode.LOCAL_ONLY, CLOCK), (Mode.UNTRUSTED, SHARE), True),  # it has no coins
        ((Mode.MASKED, CLOCK), (Mode.UNTRUSTED, SHARE), True),  # everybody is as busy as others
        ((Mode.COVERED, CLOCK), (Mode.MASKED, CLOCK), True),
    ],
)
def test_secret_coins_of_participants_show_in_no_other_experiment(tmp_path, one, other, together):
    first, second = (
        Experiment(
            folder=tmp_path,
            settings=Settings(
                terms=make_terms(mode), state=tmp_path, test_data="digits", **settings
            ),
            number=1,
            submitted="",
        )
        for mode, settings in (one, other)
    )
    assert first.may_run_beside(second) is together
    assert second.may_run_beside(first) is together
