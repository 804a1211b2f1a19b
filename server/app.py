"""The Flower ServerApp: reads its settings, runs the strategy, saves the model.

The run's configuration names a settings file on the server's own machine (``settings = PATH``).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import (
    Metrics,
    Randomness,
    Records,
    SecureRandom,
    SeededRandom,
    Task,
    WeightFiles,
    device_of,
    flatten_parameters,
    load_data,
    load_parameters,
    make_task,
    measure,
    model_of,
    require_vocabulary,
    saved_model,
    trial,
    try_out,
)
from coinflower.learning.freed_memory import hand_back_freed_memory
from coinflower.learning.models.saving import MODEL
from coinflower.protocol import messages
from coinflower.protocol.terms import Terms
from coinflower.server.checkpoint import INSECURE, CheckpointFolder, Vector, write_atomically
from coinflower.server.clients.attendance import Attendance, StoppedError, TooFewClientsError
from coinflower.server.clients.echoes import Echoes
from coinflower.server.clients.roster import SizeLimits
from coinflower.server.evaluations import Evaluations
from coinflower.server.grid import PromptGrid
from coinflower.server.journal import Journal, RoundReport
from coinflower.server.masked.opening import NotaryError
from coinflower.server.pace import Pace
from coinflower.server.rounds import Rounds
from coinflower.server.settings import Settings, load_settings
from coinflower.server.sole_use import sole_use
from coinflower.server.statistics import ask_statistics, statistics_of
from coinflower.server.strategy import DivergedError, RandomParticipation

SETTINGS_KEY = "settings"
_EVALUATION = "evaluation"  # folder of the evaluations' used-up rounds
_TRIED = 100  # rows that show whether metrics can be computed

logger = logging.getLogger("coinflower.server")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one experiment."""
    settings = load_settings(Path(str(context.run_config[SETTINGS_KEY])))
    with sole_use(settings.state):
        _main(grid, settings)


def _main(grid: Grid, settings: Settings) -> None:
    checkpoints = CheckpointFolder(
        settings.state, settings.terms.hash, insecure=settings.insecure_seed is not None
    )
    journal = Journal(settings.state, insecure=checkpoints.insecure)
    try:
        run(grid, settings, checkpoints, journal)
    except StoppedError:
        journal.stopped()
        logger.info("Stopped between two rounds, as asked; the checkpoint is complete.")
    except (UserError, TooFewClientsError, DivergedError, NotaryError, OSError) as error:
        journal.status("failed", message=str(error))
        raise
    except Exception as error:
        journal.status("defective", message=f"{type(error).__name__}: {error}")
        raise


class Ready(NamedTuple):
    """What a training needs: public data that measures the model, if any; the model; the task."""

    test: Records | None
    model: nn.Module
    task: Task


def require_ready(settings: Settings, checkpoints: CheckpointFolder | None = None) -> Ready | None:
    """Return test data, model and task, once all that can be known beforehand is in order.

    None if there is no model, because statistics are asked for.

    Raises:
        UserError: A checkpoint is there but not to be resumed, or of other terms; the data, the
            model or the task cannot be used, or do not go together.
    """
    terms = settings.terms
    checkpoints = checkpoints or CheckpointFolder(
        settings.state, terms.hash, insecure=settings.insecure_seed is not None
    )
    if checkpoints.exists() and not settings.resume:
        raise UserError(
            f"{settings.state} already holds an experiment; resume it or choose another folder."
        )
    if settings.no_other_clients and settings.expected_clients < (terms.threshold or 0):
        raise UserError(
            f"threshold = {terms.threshold} is more than the {settings.expected_clients} clients "
            "that are expected, so no sum would ever be opened."
        )
    checkpoints.used_through()  # refuses a folder of other terms before anything is sent
    if not terms.has_model:
        statistics_of(terms, settings.schema)
        return None
    task = make_task(terms.task, terms.task_options, outputs=terms.classes)
    if settings.evaluation is not None:
        settings.evaluation.terms(terms, task)  # refuses metrics that the task does not have
    files = WeightFiles([] if settings.pretrained is None else [settings.pretrained])
    model = model_of(terms, files).to(device_of(settings.device))
    test = None if settings.test_data is None else _test_data(settings, model, task)
    saved_model(model, terms)  # a model that cannot be saved shows before anybody pays for it
    return Ready(test, model, task)


def _test_data(settings: Settings, model: nn.Module, task: Task) -> Records:
    """Return the public test data, if model and task can take it."""
    terms = settings.terms
    assert settings.test_data is not None
    test = load_data(settings.test_data, schema=settings.schema, numbers=None).measuring
    if settings.schema is not None and test.schema != terms.schema:
        raise UserError(
            f"The terms name another schema than {settings.schema}: let them have schema = "
            f'"{test.schema}", its hash.'
        )
    task.take(test.targets).require_most(f"{settings.test_data} for task {terms.task!r}")
    with trial(terms.model, f"the test data {settings.test_data!r}"):
        try_out(model, terms.model, test, task)
        measure(model, test.take(slice(_TRIED)), task)
    require_vocabulary(model, test)
    return test


def _evaluations(
    settings: Settings, task: Task, randomness: Randomness, sizes: SizeLimits
) -> Evaluations | None:
    """Return what measures the model on clients' records, if the settings say so."""
    if settings.evaluation is None:
        return None
    terms = settings.evaluation.terms(settings.terms, task)
    insecure = settings.insecure_seed is not None
    return Evaluations(
        settings.evaluation,
        settings.terms,
        task,
        checkpoints=CheckpointFolder(settings.state / _EVALUATION, terms.hash, insecure=insecure),
        randomness=randomness,
        least_clients=settings.least_clients,
        expected_clients=settings.expected_clients,
        sizes=sizes,
    )


def _measured(model: nn.Module, test: Records | None, task: Task) -> Metrics | None:
    """Return the metrics; a task of the user's own that fails must not end a run that is paid."""
    if test is None:
        return None
    try:
        return measure(model, test, task)
    except UserError as error:
        logger.warning("The model cannot be measured: %s", error)
        return None


def _randomness(settings: Settings, checkpoints: CheckpointFolder) -> Randomness:
    if settings.insecure_seed is not None:
        logger.warning("INSECURE: the noise is seeded.")
        return SeededRandom(settings.insecure_seed)
    if checkpoints.insecure:
        logger.warning("INSECURE: the noise of earlier rounds of this run was seeded.")
    return SecureRandom()


def _attendance(settings: Settings, journal: Journal) -> Attendance:
    return Attendance(
        least_clients=settings.least_clients,
        expected_clients=settings.expected_clients,
        patience_seconds=settings.patience_seconds,
        no_other_clients=settings.no_other_clients,
        on_refusals=journal.refusals,
        asked_to_stop=journal.asked_to_stop,
    )


def _note(report: RoundReport, metrics: Metrics | None, terms: Terms, journal: Journal) -> None:
    """Write down a round, and stop if somebody wants it.

    Raises:
        StoppedError: Somebody does.
    """
    journal.round(report, metrics)
    journal.status("running", round_=report.round)
    if report.round < terms.rounds and journal.asked_to_stop():
        raise StoppedError


def _ask_statistics(
    grid: Grid,
    settings: Settings,
    checkpoints: CheckpointFolder,
    journal: Journal,
    randomness: Randomness,
) -> None:
    """Ask for statistics, and write what comes of it into the state folder."""
    terms, attendance = settings.terms, _attendance(settings, journal)
    attendance.require_at_least(terms.threshold or 1)
    rounds = Rounds(
        terms,
        grid=PromptGrid(grid, poll_interval=settings.poll_seconds),
        checkpoints=checkpoints,
        randomness=randomness,
        attendance=attendance,
        pace=Pace(settings.round_seconds, settings.reply_seconds),
        echoes=Echoes(checkpoints),
        timeout=settings.reply_seconds,
        sizes=SizeLimits(each=settings.largest_declared_size, together=settings.largest_total_size),
        enough=settings.enough,
    )
    journal.status("waiting")
    ask_statistics(
        rounds,
        terms,
        statistics_of(terms, settings.schema),
        checkpoints,
        settings.state,
        lambda report: _note(report, None, terms, journal),
    )
    journal.status("finished", round_=terms.rounds)


def run(grid: Grid, settings: Settings, checkpoints: CheckpointFolder, journal: Journal) -> None:
    """Train as the settings say.

    Raises:
        StoppedError: Somebody asked the run to stop, and no round was being played.
        ValueError: There is a checkpoint that is not to be resumed, or that has other terms.
        TooFewClientsError: Too few clients for too long.
    """
    torch.set_num_threads(1)
    terms = settings.terms
    ready = require_ready(settings, checkpoints)
    randomness = _randomness(settings, checkpoints)
    if ready is None:
        _ask_statistics(grid, settings, checkpoints, journal, randomness)
        return
    test, model, task = ready

    def on_round(report: RoundReport, weights: Vector) -> None:
        metrics = None
        if report.round % settings.evaluate_every == 0 or report.round == terms.rounds:
            load_parameters(model, weights)
            metrics = _measured(model, test, task)
            hand_back_freed_memory()
        _note(report, metrics, terms, journal)

    sizes = SizeLimits(each=settings.largest_declared_size, together=settings.largest_total_size)
    strategy = RandomParticipation(
        terms,
        checkpoints=checkpoints,
        randomness=randomness,
        attendance=_attendance(settings, journal),
        round_seconds=settings.round_seconds,
        enough=settings.enough,
        download_precision=settings.download_precision,
        update=settings.update,
        sizes=sizes,
        evaluations=_evaluations(settings, task, randomness, sizes),
        on_round=on_round,
    )
    strategy.summary()
    better = "larger" if task.larger_is_better else "smaller"
    headline = task.headline or "its first metric"
    logger.info("Task %s, measured by %s: %s is better.", terms.task, headline, better)
    journal.status("waiting")
    prompt = PromptGrid(
        grid, poll_interval=settings.poll_seconds, object_patience=settings.upload_seconds
    )
    hand_back_freed_memory()
    result = strategy.start(
        prompt,
        # Without a name here, so that it can go as soon as training begins.
        ArrayRecord({messages.VECTOR: Array(flatten_parameters(model).numpy())}),
        num_rounds=terms.rounds,
        timeout=settings.reply_seconds,
    )
    load_parameters(model, np.asarray(result.arrays[messages.VECTOR].numpy()))
    stamp = INSECURE if checkpoints.insecure else None
    write_atomically(settings.state / MODEL, saved_model(model, terms, stamp))
    journal.status("finished", round_=terms.rounds)
