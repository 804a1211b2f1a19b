"""A federation on this machine, from Python: what the command `coinflower run` does."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coinflower.accounting.errors import UserError
from coinflower.protocol.modes import Mode, parse_mode
from coinflower.protocol.unit import Unit, parse_unit
from coinflower.protocol.usual import usual_rounds_per_invitation

if TYPE_CHECKING:  # takes torch along
    from coinflower.learning.models.handed import ModelSource


@dataclass(frozen=True, kw_only=True)
class ClientResult:
    """What a run cost one client, as its ledger says.

    Attributes:
        name: Of the client.
        records: Size of its data set, in units of what the run protects.
        epsilon: Upper bound on what it lost, at the run's δ.
        charged_rounds: Rounds for which it flipped its coin.
        took_part: Rounds in which the coin said yes.
    """

    name: str
    records: int
    epsilon: float
    charged_rounds: int
    took_part: int


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What came out of a run.

    Attributes:
        accuracy: Of the last model that was measured on the public test set; None if none was, or
            the task has none.
        metrics: All that was measured of it, by name, the most important one first; None where the
            test set does not define one.
        task: What was learned.
        rounds: Rounds played.
        noise_multiplier: The noise that the budget needed.
        clients: What it cost each of them.
        unit: What ε protects: ``record``, or ``person`` with all of its records at a client.
        folder: Model, metrics, terms, and each client's policy and ledger.
        report: The report, one HTML file.
    """

    accuracy: float | None
    metrics: Mapping[str, float | None]
    task: str
    rounds: int
    noise_multiplier: float
    clients: tuple[ClientResult, ...]
    unit: str
    folder: Path
    report: Path

    @property
    def epsilon(self) -> float:
        """What the client lost that lost most."""
        return max(client.epsilon for client in self.clients)


def run(
    *,
    data: str | Path = "digits",
    schema: str | Path | None = None,
    partition: str = "equal",
    unit: str = Unit.RECORD,
    model: str | ModelSource | None = None,
    model_options: Mapping[str, Any] | None = None,
    pretrained: str | Path | None = None,
    trained_parts: Sequence[str] = (),
    lora_rank: int = 0,
    device: str = "cpu",
    task: str | None = None,
    task_options: Mapping[str, Any] | None = None,
    clients: int,
    rounds: int,
    mode: str = Mode.TRUSTED,
    epsilon: float,
    delta: float,
    p: float | None = None,
    q: float | None = None,
    clipping: Literal["flat", "automatic"] = "flat",
    cap: float | None = None,
    learning_rate: float | None = None,
    out: str | Path | None = None,
    insecure_seed: int | None = None,
) -> RunResult:
    """Train with a real local federation: a SuperLink, clients with ledgers, and a server.

    Args:
        data: digits, mnist, cifar10 and others, a folder, or a .csv, .parquet or .npz file.
        schema: Path of the schema, if the data is a table.
        partition: How the data is divided among the clients: equal, writer, dirichlet or files.
        unit: What is protected: ``record``, or ``person`` with all of its records; then the data
            must say whose its rows are.
        model: linear, mlp, digits, tanh-cnn, paper-cnn, resnet18-gn, gru, transformer,
            package.module:function, an ``nn.Module``, or what returns one for the number of
            outputs; chosen by the data if left out. A module is copied, and training begins with
            its weights, which every client sees.
        model_options: Options of the model, such as ``{"widths": [64, 32]}``.
        pretrained: A safetensors file of public weights that the model begins with.
        trained_parts: Beginnings of the names of the parameters that are trained; all if left out.
        lora_rank: Rank of what is learned beside each frozen Linear layer (LoRA).
        device: Where gradients are computed: cpu, cuda, mps, or auto for the best there is.
        task: classification, binary, multilabel, regression or package.module:Task; chosen by the
            targets if left out.
        task_options: Options of the task, such as ``{"class_weights": [1, 5]}``.
        clients: Number of clients.
        rounds: Number of rounds.
        mode: Who adds noise and who sees who takes part; any but ``none``.
        epsilon: Budget of every client, for all rounds together.
        delta: At this δ.
        p: Participation probability; the mode's usual one if left out.
        q: Local sampling rate.
        clipping: ``flat`` scales longer gradients down to the clip norm; ``automatic`` brings
            nearly all of them to it.
        cap: Largest norm of a client's whole sum, in clip norms, at least 1; none if left out.
        learning_rate: Step size.
        out: New folder for the results; one in ``runs`` if left out.
        insecure_seed: Seeds coins, samples and noise, so that nothing is protected: for tests only.

    Raises:
        ValueError: Wishes that make no sense, or that no noise can meet.
    """
    from coinflower.deploy.local.cluster import prepare
    from coinflower.deploy.local.local_run import collect_results, run_cluster
    from coinflower.deploy.local.plan import Plan
    from coinflower.learning import FineTuning, Update
    from coinflower.report.run import report_local_run

    chosen = parse_mode(mode)
    if not chosen.is_private:
        raise UserError(
            f"mode = {mode!r} keeps no budget; for training without privacy use the command "
            '"coinflower run --mode none --no-privacy".'
        )
    started = time.monotonic()
    plan = Plan(
        clients=clients,
        data=str(data),
        schema=None if schema is None else Path(schema),
        how=partition,
        unit=parse_unit(unit),
        model=model,
        model_options=dict(model_options or {}),
        tuning=FineTuning(
            pretrained=None if pretrained is None else Path(pretrained),
            trained_parts=tuple(trained_parts),
            lora_rank=lora_rank,
        ),
        device=device,
        task=task,
        task_options=dict(task_options or {}),
        mode=chosen,
        p=chosen.usual_p if p is None else p,
        q=Plan.q if q is None else q,
        clipping=clipping,
        cap=math.inf if cap is None else cap,
        update=Update(learning_rate=learning_rate),
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        rounds_per_invitation=usual_rounds_per_invitation(rounds),
        insecure_seed=insecure_seed,
    )
    cluster = prepare(plan, None if out is None else Path(out))
    run_cluster(cluster, stop=threading.Event(), progress=lambda *_: None)
    results = collect_results(cluster, started)
    return RunResult(
        accuracy=results["accuracy"],
        metrics=results["metrics"] or {},
        task=results["task"],
        rounds=results["rounds"],
        noise_multiplier=results["sigma"],
        clients=tuple(_client_result(row) for row in results["clients"]),
        unit=results["unit"],
        folder=cluster.folder,
        report=Path(report_local_run(cluster)),
    )


def _client_result(row: dict[str, Any]) -> ClientResult:
    return ClientResult(
        name=row["client"],
        records=row["samples"],
        epsilon=row["epsilon"],
        charged_rounds=row["charged_rounds"],
        took_part=row["participated_rounds"],
    )
