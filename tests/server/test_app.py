"""The ServerApp: what a run leaves in its folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from coinflower.accounting.errors import UserError
from coinflower.learning import build_model, flatten_parameters, hash_of_weights, load_model
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.server.app import main, run
from coinflower.server.checkpoint import CheckpointFolder
from coinflower.server.clients.attendance import TooFewClientsError
from coinflower.server.journal import METRICS, Journal, MetricsReader, read_metrics, read_status
from coinflower.server.settings import Settings, save_settings
from tests.support import own_models

Make = Callable[..., Any]


def settings_of(fed: Any, **changes: Any) -> Settings:
    options: dict[str, Any] = {
        "test_data": str(fed.folder / "client-0.npz"),
        "expected_clients": len(fed.nodes),
        "evaluate_every": 4,
        "reply_seconds": 5.0,
        "patience_seconds": 1.0,
    }
    return Settings(terms=fed.terms, state=fed.state, **{**options, **changes})


def train(fed: Any, **changes: Any) -> None:
    settings = settings_of(fed, **changes)
    insecure = settings.insecure_seed is not None
    checkpoints = CheckpointFolder(fed.state, fed.terms.hash, insecure=insecure)
    run(fed.grid, settings, checkpoints, Journal(fed.state, insecure=checkpoints.insecure))


def start(fed: Any, **changes: Any) -> None:
    """Start as Flower does."""
    path = fed.folder / "settings.toml"
    save_settings(settings_of(fed, **changes), path)
    context = Context(
        run_id=1,
        node_id=1,
        node_config={},
        state=RecordDict(),
        run_config={"settings": str(path)},
    )
    main(fed.grid, context)


def test_the_model_is_left_behind_under_the_names_of_its_layers(federation: Make) -> None:
    fed = federation()
    train(fed)
    model = build_model("digits", classes=10)
    model.load_state_dict(load_file(fed.state / "model.safetensors"))
    final = fed.checkpoints().load()
    assert np.array_equal(flatten_parameters(model).numpy(), final.weights)
    assert not np.array_equal(final.weights, fed.initial())


@pytest.mark.parametrize("name", [own_models.RECURRENT, own_models.TIED])
def test_a_model_whose_weights_share_memory_is_left_behind_too(federation: Make, name: str) -> None:
    allowed = {index: {"models": [name]} for index in range(3)}
    fed = federation(model=name, policy=allowed)
    train(fed)
    final = fed.checkpoints().load()
    model = load_model(fed.state)
    assert np.array_equal(flatten_parameters(model).numpy(), final.weights)
    (fed.state / "model.safetensors").unlink()  # as if saving had failed
    train(fed, resume=True)
    assert (fed.state / "model.safetensors").exists()


def test_a_model_that_cannot_be_saved_shows_before_anybody_pays(federation: Make) -> None:
    allowed = {index: {"models": [own_models.EXTRA]} for index in range(3)}
    fed = federation(model=own_models.EXTRA, policy=allowed)
    with pytest.raises(UserError, match="the model cannot be saved"):
        train(fed)
    assert fed.grid.events == []


def test_a_model_begins_with_public_weights_and_only_what_is_trained_travels(
    federation: Make, tmp_path: Path
) -> None:
    made: dict[str, Any] = {"row_shape": (1, 8, 8), "options": {"widths": [16]}}
    public = build_model("mlp", classes=10, **made, seed=9)
    file = tmp_path / "public.safetensors"
    save_file(public.state_dict(), file)
    fed = federation(
        policy={index: {"models": ["mlp"], "pretrained": [str(file)]} for index in range(3)},
        **{"model": "mlp", "row_shape": (1, 8, 8), "model_options": {"widths": [16]}},
        pretrained=hash_of_weights(file),
        trained_parts=("3",),
        lora_rank=2,
    )
    with pytest.raises(UserError, match="which no file here has"):
        train(fed)
    assert fed.grid.events == []
    train(fed, pretrained=file)
    assert len(fed.checkpoints().load().weights) == 16 * 10 + 10 + 2 * (64 + 16)
    trained = load_model(fed.state).state_dict()
    assert trained.keys() == public.state_dict().keys()
    assert torch.equal(trained["1.bias"], public.state_dict()["1.bias"])
    moved = trained["1.weight"] - public.state_dict()["1.weight"]
    assert torch.linalg.matrix_rank(moved, rtol=1e-4) == 2


def test_every_round_leaves_a_line_and_accuracy_every_few(federation: Make) -> None:
    fed = federation(rounds=6)
    train(fed)
    lines = read_metrics(fed.state)
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["round"] for line in lines if line["accuracy"] is not None] == [4, 6]
    assert all(0 <= line["accuracy"] <= 1 for line in lines if line["accuracy"] is not None)
    assert set(lines[0]) == {
        "round",
        "available",
        "participants",
        "asked",
        "answered",
        "dropped",
        "expected_batch",
        "seconds",
        "received_bytes",
        "accuracy",
        "metrics",
    }
    assert lines[3]["metrics"]["accuracy"] == lines[3]["accuracy"]
    assert list(lines[3]["metrics"]) == ["accuracy", "macro_f1"]


def test_the_end_is_recorded(federation: Make) -> None:
    fed = federation()
    train(fed)
    status = read_status(fed.state)
    assert (status["state"], status["round"], status["message"]) == ("finished", 6, "")


def test_the_status_follows_the_run(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED)
    seen: dict[tuple[str, int], None] = {}

    def look(_: Message) -> None:
        status = read_status(fed.state)
        seen[status["state"], status["round"]] = None

    fed.grid.before_push = look
    train(fed)
    assert list(seen) == [("waiting", 0), *(("running", round_) for round_ in range(1, 6))]


def test_an_existing_experiment_is_not_overwritten(federation: Make) -> None:
    fed = federation()
    train(fed)
    before = (fed.state / "checkpoint.safetensors").read_bytes()
    asked = len(fed.grid.events)
    with pytest.raises(ValueError, match="already holds an experiment; resume it or choose"):
        train(fed)
    assert (fed.state / "checkpoint.safetensors").read_bytes() == before
    assert len(fed.grid.events) == asked


def test_a_run_that_broke_off_is_resumed_and_its_lines_go_on(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED)

    def crash(message: Message) -> None:
        if message.content.config_records[messages.ASK].get("round") == 4:
            raise KeyboardInterrupt

    fed.grid.before_push = crash
    with pytest.raises(KeyboardInterrupt):
        train(fed)
    with (fed.state / METRICS).open("a") as file:
        file.write('{"round": 4, "avail')
    fed.grid.before_push = lambda _: None
    train(fed, resume=True)
    assert [line["round"] for line in read_metrics(fed.state)] == [1, 2, 3, 5, 6]
    assert read_status(fed.state)["state"] == "finished"


def test_other_terms_are_not_resumed(federation: Make) -> None:
    fed = federation()
    train(fed)
    asked = len(fed.grid.events)
    other = federation(experiment="other", sizes=())
    other.grid = fed.grid
    with pytest.raises(ValueError, match="other terms"):
        train(other, resume=True)
    assert len(fed.grid.events) == asked


def test_flower_starts_it_with_a_settings_file(federation: Make) -> None:
    fed = federation()
    start(fed)
    assert read_status(fed.state)["state"] == "finished"


def test_a_failure_is_recorded_with_its_sentence(federation: Make) -> None:
    fed = federation(policy={i: {"largest_p": 0.1} for i in range(3)})
    with pytest.raises(TooFewClientsError):
        start(fed, patience_seconds=0.2)
    status = read_status(fed.state)
    assert status["state"] == "failed"
    assert status["message"].startswith("Only 0 of at least 1 clients were there for 0.2 s")
    assert "The participation probability p is larger than this client allows." in status["message"]


def test_a_failure_later_on_keeps_what_was_reached(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED, rounds=50)

    def fail(message: Message, deliver: Callable[[], Message]) -> Message:
        if int(str(message.content.config_records[messages.ASK].get("round", 0))) > 3:
            return Message(Error(2, "failed"), reply_to=message)
        return deliver()

    fed.grid.interfere = fail
    with pytest.raises(TooFewClientsError):
        start(fed, patience_seconds=0.2)
    assert read_status(fed.state)["state"] == "failed"
    assert fed.checkpoints().load().round == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"test_data": "nowhere"}, "data 'nowhere' does not exist"),
        ({"model": "digit"}, "model 'digit' is unknown"),
        ({"model": "paper-cnn"}, "model 'paper-cnn' cannot take the test data"),
    ],
)
def test_what_cannot_work_is_said_before_any_client_is_asked(
    federation: Make, changes: dict[str, Any], sentence: str
) -> None:
    terms = {key: value for key, value in changes.items() if key == "model"}
    fed = federation(**terms)
    with pytest.raises(ValueError, match=sentence):
        start(fed, **{key: value for key, value in changes.items() if key != "model"})
    assert fed.grid.events == []
    assert read_status(fed.state)["state"] == "failed"


def test_a_seeded_run_is_repeatable_and_stamped_on_every_line(
    federation: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = []
    for name in ("one", "two"):
        fed = federation(experiment=name, sizes=(12,) if name == "one" else ())
        fed.folder = tmp_path / name
        fed.grid.policies = {1000: tmp_path / "client-0.toml"}
        fed.grid.online = {1000}

        def empty(message: Message, deliver: Callable[[], Message]) -> Message:
            if message.metadata.message_type == "query.invite":
                record = ConfigRecord({messages.COINS: [False]})
                return Message(RecordDict({messages.ANSWER: record}), reply_to=message)
            return deliver()

        fed.grid.interfere = empty
        train(fed, insecure_seed=5, test_data=str(tmp_path / "client-0.npz"))
        models.append(fed.checkpoints().load().weights)
        assert all(line["insecure"] for line in read_metrics(fed.state))
        assert read_status(fed.state)["insecure"] is True
    assert np.array_equal(*models)
    assert "INSECURE" in caplog.text


def test_a_run_that_is_not_seeded_is_not_repeatable_and_bears_no_stamp(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED)
    train(fed)
    assert not any("insecure" in line for line in read_metrics(fed.state))
    assert "insecure" not in read_status(fed.state)
    assert stamps(fed.state) == [None, None]


def stamps(folder: Path) -> list[str | None]:
    found = []
    for name in ("checkpoint.safetensors", "model.safetensors"):
        with safe_open(folder / name, "numpy") as file:
            found.append((file.metadata() or {}).get("insecure"))
    return found


def test_the_checkpoint_and_the_model_of_a_seeded_run_are_stamped(federation: Make) -> None:
    fed = federation(Mode.UNTRUSTED)
    train(fed, insecure_seed=5)
    assert stamps(fed.state) == ["true", "true"]


def test_a_run_once_seeded_stays_insecure_when_it_is_resumed_without_the_seed(
    federation: Make,
) -> None:
    fed = federation(Mode.UNTRUSTED)

    def crash(message: Message) -> None:
        if message.content.config_records[messages.ASK].get("round") == 4:
            raise KeyboardInterrupt

    fed.grid.before_push = crash
    with pytest.raises(KeyboardInterrupt):
        start(fed, insecure_seed=5)
    fed.grid.before_push = lambda _: None
    start(fed, resume=True)
    assert stamps(fed.state) == ["true", "true"]
    assert read_status(fed.state)["insecure"] is True
    assert all(line["insecure"] for line in read_metrics(fed.state))


def test_a_line_that_is_just_being_written_is_not_read(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert [line["round"] for line in read_metrics(tmp_path)] == [1, 2]


def test_a_reader_that_follows_gives_every_round_once(tmp_path: Path) -> None:
    reader = MetricsReader(tmp_path)
    assert reader.read_new() == []
    with (tmp_path / METRICS).open("a") as file:
        for text, new in (
            ('{"round": 1}\n{"ro', [1]),
            ("und", []),
            ('": 2}\n{"round": 3, "what": "ε"}\n', [2, 3]),
            ("", []),
        ):
            file.write(text)
            file.flush()
            assert [row["round"] for row in reader.read_new()] == new
    assert reader.rows == read_metrics(tmp_path)
    assert len(reader.rows) == 3


def test_a_line_torn_by_a_crash_is_cut_before_the_next_is_written(tmp_path: Path) -> None:
    for content, kept in (('{"round": 1}\n{"rou', 1), ("{", 0), ("", 0), ('{"round": 1}\n', 1)):
        (tmp_path / METRICS).write_text(content)
        Journal(tmp_path, insecure=False)
        assert len((tmp_path / METRICS).read_text().splitlines()) == kept


def test_before_a_run_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    assert read_status(tmp_path) == {}


def test_a_status_is_replaced_as_a_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path, insecure=True)
    journal.status("running", round_=3)
    journal.status("failed", message="too few")
    content = json.loads((tmp_path / "status.json").read_text())
    expected = {"state": "failed", "round": 0, "message": "too few", "insecure": True}
    assert content.items() >= expected.items()
