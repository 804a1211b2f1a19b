"""The Flower ServerApp: reads its settings, runs the strategy, saves the model.

The run's configuration names a settings file on the server's own machine (``settings = PATH``).
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save as save_model
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import (
    Randomness,
    Records,
    SecureRandom,
    SeededRandom,
    evaluate,
    flatten_parameters,
    load_data,
    load_parameters,
    model_of,
    require_vocabulary,
    trial,
)
from coinflower.protocol import messages
from coinflower.server.attendance import Attendance, TooFewClientsError
from coinflower.server.checkpoint import INSECURE, CheckpointFolder, Vector, write_atomically
from coinflower.server.grid import PromptGrid
from coinflower.server.journal import Journal, RoundReport
from coinflower.server.roster import SizeLimits
from coinflower.server.settings import Settings, load_settings
from coinflower.server.strategy import DivergedError, RandomParticipation

SETTINGS_KEY = "settings"
MODEL = "model.safetensors"

logger = logging.getLogger("coinflower.server")

app = ServerApp()


class StoppedError(Exception):
    """The run was asked to end, and did so between two rounds."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one experiment."""
    settings = load_settings(Path(str(context.run_config[SETTINGS_KEY])))
    checkpoints = CheckpointFolder(
        settings.state, settings.terms.hash, insecure=settings.insecure_seed is not None
    )
    journal = Journal(settings.state, insecure=checkpoints.insecure)
    try:
        run(grid, settings, checkpoints, journal)
    except StoppedError:
        logger.info("Stopped between two rounds, as asked; the checkpoint is complete.")
    except (UserError, TooFewClientsError, DivergedError, OSError) as error:
        journal.status("failed", message=str(error))
        raise
    except Exception as error:
        journal.status("defective", message=f"{type(error).__name__}: {error}")
        raise


def require_ready(
    settings: Settings, checkpoints: CheckpointFolder | None = None
) -> tuple[Records, nn.Module]:
    """Return the test data and the model, once all that can be known beforehand is in order.

    Raises:
        UserError: A checkpoint is there but not to be resumed, or of other terms; the data or the
            model cannot be used, or do not go together.
    """
    terms = settings.terms
    checkpoints = checkpoints or CheckpointFolder(
        settings.state, terms.hash, insecure=settings.insecure_seed is not None
    )
    if checkpoints.exists() and not settings.resume:
        raise UserError(
            f"{settings.state} already holds an experiment; resume it or choose another folder."
        )
    checkpoints.used_through()  # refuses a folder of other terms before anything is sent
    test = load_data(settings.test_data, schema=settings.schema).measuring
    if settings.schema is not None and test.schema != terms.schema:
        raise UserError(
            f"The terms name another schema than {settings.schema}: let them have schema = "
            f'"{test.schema}", its hash.'
        )
    model = model_of(terms)
    with trial(terms.model, f"the test data {settings.test_data!r}"):
        first = test.take(slice(1))
        evaluate(model, first.arrays, first.targets)
    require_vocabulary(model, test)
    return test, model


def run(grid: Grid, settings: Settings, checkpoints: CheckpointFolder, journal: Journal) -> None:
    """Train as the settings say.

    Raises:
        StoppedError: Somebody asked the run to stop, and a round had just ended.
        ValueError: There is a checkpoint that is not to be resumed, or that has other terms.
        TooFewClientsError: Too few clients for too long.
    """
    torch.set_num_threads(1)
    terms = settings.terms
    test, model = require_ready(settings, checkpoints)
    randomness: Randomness = SecureRandom()
    if settings.insecure_seed is not None:
        logger.warning("INSECURE: the noise is seeded.")
        randomness = SeededRandom(settings.insecure_seed)
    elif checkpoints.insecure:
        logger.warning("INSECURE: the noise of earlier rounds of this run was seeded.")

    def on_round(report: RoundReport, weights: Vector) -> None:
        accuracy = None
        if report.round % settings.evaluate_every == 0 or report.round == terms.rounds:
            load_parameters(model, weights)
            accuracy = evaluate(model, test.arrays, test.targets)
        journal.round(report, accuracy)
        journal.status("running", round_=report.round)
        if report.round < terms.rounds and journal.asked_to_stop():
            journal.status("stopped", round_=report.round)
            raise StoppedError

    strategy = RandomParticipation(
        terms,
        checkpoints=checkpoints,
        randomness=randomness,
        attendance=Attendance(
            least_clients=settings.least_clients,
            expected_clients=settings.expected_clients,
            patience_seconds=settings.patience_seconds,
            no_other_clients=settings.no_other_clients,
            on_refusals=journal.refusals,
        ),
        round_seconds=settings.round_seconds,
        enough=settings.enough,
        update=settings.update,
        sizes=SizeLimits(each=settings.largest_declared_size, together=settings.largest_total_size),
        on_round=on_round,
    )
    strategy.summary()
    journal.status("waiting")
    initial = ArrayRecord({messages.VECTOR: Array(flatten_parameters(model).numpy())})
    result = strategy.start(
        PromptGrid(grid, poll_interval=settings.poll_seconds),
        initial,
        num_rounds=terms.rounds,
        timeout=settings.reply_seconds,
    )
    load_parameters(model, np.asarray(result.arrays[messages.VECTOR].numpy()))
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    stamp = INSECURE if checkpoints.insecure else None
    write_atomically(settings.state / MODEL, save_model(tensors, metadata=stamp))
    journal.status("finished", round_=terms.rounds)
