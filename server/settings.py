"""The parameter server's settings: the terms, and what concerns only the server."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field

from coinflower.accounting.errors import UserError
from coinflower.learning.optimizer import Update
from coinflower.protocol.messages import Precision
from coinflower.protocol.strict import (
    Count,
    Index,
    Listed,
    Positive,
    Probability,
    Text,
    load,
    read_toml,
    strict,
)
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import write_atomically
from coinflower.server.clients.roster import LARGEST_TOTAL_SIZE, SizeLimits
from coinflower.server.evaluations import EvaluationSettings
from coinflower.server.lateness import Enough

_PATHS = ("state", "schema", "pretrained")
# The sum of a round can hold no more.
Size = Annotated[int, Field(ge=1, le=LARGEST_TOTAL_SIZE)]


class TrackerName(StrEnum):
    """Programs that show the figures of rounds."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"


@strict
class Mlflow:
    """Where a run is tracked with MLflow.

    Attributes:
        uri: Of its tracking server; MLflow's own choice (``MLFLOW_TRACKING_URI``) if left out. A
            name and password belong into MLflow's variables, not here.
        experiment: Name of the experiment there.
    """

    uri: Text | None = None
    experiment: Text = "coinflower"


@strict
class Settings:
    """A run of the server.

    Attributes:
        terms: The public terms.
        state: Folder for checkpoint, metrics and the final model.
        test_data: Name or path of a *public* data set whose test part measures the model. It may be
            left out if clients' records measure it (``evaluation``), or there is no model.
        schema: Path of the schema of the terms, if the test data is a table.
        pretrained: Path of the public weights that the terms name, if they do.
        device: Where the model is measured: cpu, cuda, mps, or auto for the best there is.
        least_clients: Fewest available clients for a round.
        expected_clients: The first round waits until this many have enrolled or refused, or until
            no more come.
        no_other_clients: Nobody else will come: the run ends as soon as too many of them refuse.
        patience_seconds: How long to wait for them before giving up.
        reply_seconds: How long a client may take to answer.
        upload_seconds: How long an answer may be under way once a client has begun to send it,
            within ``reply_seconds``; the others' answers are read after it.
        poll_seconds: Pause between two checks for replies; stock Flower's is 3.
        round_seconds: From the beginning of a round to that of the next, so that other clients
            cannot tell from the length of a round who takes part; None begins it as soon as
            possible.
        enough_share: Part of the clients whose answers are enough for a round: the others have
            ``grace_seconds`` more. None waits for all, for ``reply_seconds`` at most.
        grace_seconds: See ``enough_share``.
        download_precision: ``half`` sends clients the model in 16 bits a number, which halves what
            they download; the server keeps 32. The model is public, so this costs no ε.
        update: How the model steps; costs no ε, so that clients need not agree to it.
        evaluate_every: Rounds between two measurements of the model on the test data.
        evaluation: How the model is measured on clients' own records, which they are charged for;
            None never does.
        resume: Continue from the checkpoint in ``state``.
        largest_declared_size: Clients that declare more records than this stay out.
        largest_total_size: So do those that would bring all declared sizes above this.
        trackers: Who else is told the figures of each round.
        mlflow: Where MLflow is.
        insecure_seed: Makes the noise predictable; for tests only.
    """

    terms: Terms
    state: Path
    test_data: Text | None = None
    schema: Path | None = None
    pretrained: Path | None = None
    device: Text = "cpu"
    least_clients: Count = 1
    expected_clients: Count = 1
    no_other_clients: bool = False
    patience_seconds: Positive = 300.0
    reply_seconds: Positive = 60.0
    upload_seconds: Positive = 20.0
    poll_seconds: Positive = 0.05
    round_seconds: Positive | None = None
    enough_share: Probability | None = None
    grace_seconds: Positive = 2.0
    download_precision: Precision = "single"
    update: Update = Update()
    evaluate_every: Count = 5
    evaluation: EvaluationSettings | None = None
    resume: bool = False
    largest_declared_size: Size = SizeLimits.each
    largest_total_size: Size = SizeLimits.together
    trackers: Listed[TrackerName] = ()
    mlflow: Mlflow = Mlflow()
    insecure_seed: Index | None = None

    def __post_init__(self) -> None:
        """Check what concerns several fields."""
        if self.test_data is None and self.evaluation is None and self.terms.has_model:
            raise UserError(
                "test_data is missing: name public data that measures the model, or let clients' "
                "records do so with [evaluation]."
            )
        if self.evaluation is not None and not self.terms.has_model:
            raise UserError("[evaluation] measures a model, and the terms have none.")
        if self.enough is not None:
            self.enough.require_mode(self.terms.mode)
            if self.round_seconds is not None:
                raise UserError(
                    f"enough_share = {self.enough_share:g} ends rounds early, and round_seconds = "
                    f"{self.round_seconds:g} begins them on a clock: leave out one of them."
                )

    @property
    def enough(self) -> Enough | None:
        """When a round need not wait for everybody; None waits for all."""
        if self.enough_share is None:
            return None
        return Enough(share=self.enough_share, grace_seconds=self.grace_seconds)


def save_settings(settings: Settings, path: Path) -> None:
    """Write the settings as TOML."""
    table: dict[str, Any] = {
        key: value
        for key, value in vars(settings).items()
        if value is not None and key not in ("terms", "update", "mlflow", "evaluation")
    }
    for name in _PATHS:
        if name in table:
            table[name] = str(table[name].absolute())
    table["update"] = settings.update.to_fields()
    table["mlflow"] = {key: value for key, value in vars(settings.mlflow).items() if value}
    if settings.evaluation is not None:
        table["evaluation"] = settings.evaluation.to_fields()
    table["terms"] = settings.terms.to_fields()
    write_atomically(path, tomli_w.dumps(table).encode())


def load_settings(path: Path, *, states: Path | None = None) -> Settings:
    """Read a settings file; relative paths of files and folders start at the file's folder.

    Args:
        path: The file.
        states: Where an experiment whose settings name no ``state`` has one, in a folder of the
            experiment's name; None lets nobody leave it out.

    Raises:
        ValueError: Naming the file, the key and what is wrong with it.
    """
    read = load(Settings, path, f"The settings {path}", **({} if states is None else {"state": ""}))
    files = {name: getattr(read, name) for name in _PATHS}
    files = {name: path.parent / file for name, file in files.items() if file is not None}
    if states is not None and "state" not in read_toml(path):
        files["state"] = states / read.terms.experiment / "state"
    return replace(read, **files)
