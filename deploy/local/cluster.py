"""A local federation on disk: terms, settings, and a policy and a ledger for every client."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.accounting import validation
from coinflower.accounting.composition.calibration import least_sigma
from coinflower.accounting.composition.compose import Rounds, epsilon_after
from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_up
from coinflower.deploy.keys.keys import make_node_key
from coinflower.deploy.machines.notary_folder import NotaryFolder
from coinflower.deploy.trackers.following import require_trackers
from coinflower.learning import (
    Clipping,
    Dataset,
    FineTuning,
    Task,
    Update,
    device_of,
    load_data,
    model_for,
    partition,
    subject_of,
    task_for,
    usual_task,
    with_test_part,
)
from coinflower.learning.data.arrays import save_npz
from coinflower.learning.data.own_loader import is_own_loader
from coinflower.learning.data.partitions import file_count
from coinflower.learning.data.persons import units_of
from coinflower.learning.models.handed import FOLDER, ModelSource, hand_over
from coinflower.learning.optimizer import usual_for
from coinflower.masking.sealing import public_bytes
from coinflower.protocol.masked_terms import masked_fields
from coinflower.protocol.messages import Precision
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import Policy, Share
from coinflower.protocol.query import MetricName
from coinflower.protocol.strict import Options
from coinflower.protocol.terms import Terms
from coinflower.protocol.unit import Unit
from coinflower.server.evaluations import EvaluationSettings
from coinflower.server.settings import Settings, TrackerName, save_settings

# A budget that nobody stated is what the noise costs, with room for the last digit only.
_ROOM = 1 + 1e-9
_LONG_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `coinflower run` is asked for.

    Attributes:
        clients: Number of clients; None takes as many as there are files.
        data: Name or path of the data set that is shared out.
        download: Whether public data may be fetched.
        schema: Path of the schema, if the data is a table.
        how: Partition: equal, writer, dirichlet or files.
        alpha: Concentration of the Dirichlet partition.
        unit: What is protected, and what declared sizes count.
        mode: Privacy mode.
        p: Participation probability.
        q: Sampling rate.
        clip_norm: Clip norm.
        clipping: How gradients are clipped.
        cap: Largest norm of a client's whole sum, in clip norms; infinite for none.
        sigma: Noise multiplier; calibrated from ``epsilon`` if None.
        epsilon: Budget of every client, which is never raised; None grants what ``sigma`` costs.
        delta: At this δ.
        rounds: Number of rounds.
        rounds_per_invitation: Coins per invitation.
        model: Name of the model, the model itself, or what makes it from the number of its outputs;
            chosen by the data if None.
        model_options: Its options.
        tuning: What the model begins with, and which of its parts are trained.
        device: Where gradients are computed.
        task: What is learned; if None, classes or else numbers, whichever the targets are.
        task_options: Its options.
        update: How the model steps.
        evaluate_every: Rounds between two evaluations.
        evaluation_epsilon: What evaluations on clients' own records may cost of the budget, on
            their own; None makes none.
        evaluation_metrics: What these measure; the metric to look at first if empty.
        poll_seconds: Pause of the server between two looks for replies.
        round_seconds: From the beginning of a round to that of the next; None starts it at once.
        download_precision: How exactly clients are told the model: ``single`` or ``half``.
        trackers: Who else is told the figures of each round.
        insecure_seed: Seeds everything; for tests only.
        threshold: In mode masked, how many clients an opened sum has at least; None chooses.
        colluders: How many of them may collude; None chooses.
        waits_for_all: Whether a round waits for every client, however slow. For clients that are
            never away, such as those of Flower's simulation engine, which plays them in turns.
    """

    clients: int | None
    data: str
    download: bool = False
    schema: Path | None = None
    how: str = "equal"
    alpha: float = 0.5
    unit: Unit = Unit.RECORD
    mode: Mode
    p: float
    q: float = 0.2
    clip_norm: float = 1.0
    clipping: Clipping = "flat"
    cap: float = math.inf
    sigma: float | None = None
    epsilon: float | None
    delta: float
    rounds: int
    rounds_per_invitation: int
    model: str | ModelSource | None = None
    model_options: Options = field(default_factory=dict)
    tuning: FineTuning = field(default_factory=FineTuning)
    device: str = "cpu"
    task: str | None = None
    task_options: Options = field(default_factory=dict)
    update: Update = field(default_factory=Update)
    evaluate_every: int = 5
    evaluation_epsilon: float | None = None
    evaluation_metrics: tuple[MetricName, ...] = ()
    poll_seconds: float = 0.05
    round_seconds: float | None = None
    download_precision: Precision = "single"
    trackers: tuple[TrackerName, ...] = ()
    insecure_seed: int | None = None
    threshold: int | None = None
    colluders: int | None = None
    waits_for_all: bool = False

    def __post_init__(self) -> None:
        """Check the budget; the terms check the others."""
        validation.require_delta(self.delta)
        if self.epsilon is not None:
            validation.require_epsilon(self.epsilon)
        if self.evaluation_epsilon is not None:
            self._check_evaluation(self.evaluation_epsilon)
        for name in ("threshold", "colluders"):
            if getattr(self, name) is not None and not self.mode.masks_sums:
                raise UserError(f"{name} goes with mode masked, not with mode {self.mode}.")
        if self.mode.masks_sums and self.waits_for_all:
            raise UserError(
                "Flower's simulation engine plays clients only, and mode masked needs a notary, "
                "too; choose other --nodes."
            )

    def _check_evaluation(self, epsilon: float) -> None:
        validation.require_positive("evaluation_epsilon", epsilon)
        if not self.mode.is_private:
            raise UserError("Evaluations on clients' records need a mode that protects them.")
        if self.epsilon is not None and not epsilon < self.epsilon:
            raise UserError(
                f"evaluation_epsilon = {epsilon:g} must be below epsilon = {self.epsilon:g}, of "
                "which it is a part: nothing would be left for training."
            )


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A prepared federation in a folder."""

    folder: Path
    terms: Terms
    delta: float
    insecure: bool
    evaluation: Terms | None = None
    """What clients agree to beside the training, if the model is measured on their records."""

    @property
    def queries(self) -> list[Terms]:
        """What clients agree to beside the training."""
        return [] if self.evaluation is None else [self.evaluation]

    @property
    def settings(self) -> Path:
        """The server's settings file."""
        return self.folder / "settings.toml"

    @property
    def schema(self) -> Path:
        """The copy of the schema, if the data is a table."""
        return self.folder / "schema.toml"

    @property
    def server(self) -> Path:
        """The server's state folder."""
        return self.folder / "server"

    @property
    def policies(self) -> list[Path]:
        """The clients' policy files, in order."""
        count = len(list(self.folder.glob("clients/client-*.toml")))
        return [self.folder / "clients" / f"client-{index}.toml" for index in range(count)]

    @property
    def notary(self) -> NotaryFolder | None:
        """The notary's folder, in mode masked."""
        return NotaryFolder(self.folder / "notary") if self.terms.mode.masks_sums else None

    def ledger(self, index: int) -> Path:
        """Return where a client's ledger is."""
        return self.folder / "clients" / f"client-{index}.db"


def fresh_name(kind: str) -> str:
    """Return a name that nothing bears yet, of an experiment and of its folder in ``runs``."""
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    return f"{kind}-{moment}-{secrets.token_hex(3)}"


def prepare(plan: Plan, folder: Path | None, *, notary: X25519PrivateKey | None = None) -> Cluster:
    """Write everything that the federation needs into a new folder.

    Args:
        plan: What is asked for.
        folder: Where to; None makes one in ``runs``.
        notary: The notary's key in mode masked; a fresh one if left out.

    Raises:
        ValueError: The plan makes no sense, or the folder is in use.
    """
    require_trackers(plan.trackers)
    loaded = load_data(plan.data, schema=plan.schema, numbers=None, download=plan.download)
    data = with_test_part(loaded)
    sizes = sizes_of(plan, data)
    clients = len(sizes)
    experiment = fresh_name("run")
    task = task_for(loaded, plan.task or usual_task(loaded), plan.task_options)
    handed = None
    if plan.model is not None and not isinstance(plan.model, str):
        handed = hand_over(plan.model, classes=task.outputs, options=plan.model_options)
        handed.offer()
        plan = replace(plan, model=handed.name, model_options={})
    notary = notary or X25519PrivateKey.generate()
    evaluation = _evaluation(plan, max(sizes))
    terms = _terms(plan, experiment, data, task, sizes, notary, evaluation)
    # Now, not in a round, shows what does not go together.
    model = model_for(
        terms.model,
        data,
        task,
        options=terms.model_options,
        tuning=plan.tuning,
        device=device_of(plan.device),
    )
    parameters = sum(each.numel() for each in model.parameters())
    folder = empty_folder(folder, experiment)
    cluster = Cluster(
        folder=folder.absolute(),
        terms=terms,
        delta=plan.delta,
        insecure=plan.insecure_seed is not None,
        evaluation=None if evaluation is None else evaluation.terms(terms, task),
    )
    (cluster.folder / "clients").mkdir(parents=True)
    if handed is not None:
        handed.write(cluster.folder / FOLDER)
    if cluster.notary is not None:
        cluster.notary.create(notary)
    (cluster.folder / "terms.json").write_text(json.dumps(terms.to_fields(), indent=1) + "\n")
    if plan.schema is not None:
        cluster.schema.write_bytes(plan.schema.read_bytes())
    where = place_of(plan.data)
    save_settings(
        Settings(
            terms=terms,
            state=cluster.server,
            test_data=where if loaded.test_part is not None else _save_test_part(cluster, data),
            schema=cluster.schema if plan.schema and loaded.test_part is not None else None,
            pretrained=plan.tuning.pretrained,
            device=plan.device,
            least_clients=clients if plan.waits_for_all else 1,
            expected_clients=clients,
            no_other_clients=True,
            update=usual_for(plan.update, numbers=terms.task == "regression"),
            evaluate_every=plan.evaluate_every,
            evaluation=evaluation,
            poll_seconds=plan.poll_seconds,
            round_seconds=plan.round_seconds,
            download_precision=plan.download_precision,
            patience_seconds=_LONG_SECONDS if plan.waits_for_all else 120.0,
            reply_seconds=_LONG_SECONDS if plan.waits_for_all else 60.0,
            trackers=plan.trackers,
            insecure_seed=plan.insecure_seed,
        ),
        cluster.settings,
    )
    write_clients(cluster, plan, sizes, parameters)
    return cluster


def empty_folder(folder: Path | None, experiment: str) -> Path:
    """Return where an experiment goes: the folder, or one in ``runs``.

    Raises:
        ValueError: There is something in it.
    """
    folder = folder or Path("runs") / experiment
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another folder, or --resume {folder}.")
    return folder


def sizes_of(plan: Plan, data: Dataset) -> list[int]:
    """Return how much of the data each client has, in units of what is protected."""
    shares = partition(
        data,
        clients=file_count(data) if plan.clients is None else plan.clients,
        how=plan.how,
        seed=plan.insecure_seed or 0,
        alpha=plan.alpha,
        unit=plan.unit,
    )
    units = units_of(data.train, plan.unit, data.name)
    return [units.count(rows) for rows in shares]


def place_of(data: str) -> str:
    """Return where data is, from whatever folder; the names of data sets stay as they are."""
    return str(Path(data).absolute()) if Path(data).exists() else data


def write_clients(cluster: Cluster, plan: Plan, sizes: Sequence[int], parameters: int) -> None:
    """Write a policy and an empty ledger for every client."""
    for index, size in enumerate(sizes):
        share = Share(
            clients=len(sizes),
            index=index,
            how=plan.how,
            alpha=plan.alpha,
            seed=plan.insecure_seed or 0,
        )
        _write_client(cluster, plan, place_of(plan.data), share, size, parameters)


def _save_test_part(cluster: Cluster, data: Dataset) -> str:
    """Keep the rows that no client has, for the server to measure with."""
    path = cluster.folder / "test.npz"
    save_npz(path, data.test)
    return str(path)


def _terms(
    plan: Plan,
    experiment: str,
    data: Dataset,
    task: Task,
    sizes: Sequence[int],
    notary: X25519PrivateKey,
    evaluation: EvaluationSettings | None,
) -> Terms:
    if plan.mode.is_private and plan.epsilon == 0:
        raise UserError("epsilon = 0 is a budget of nothing: no round may be played.")
    largest_size = max(sizes)
    beside = _evaluation_rounds(plan, evaluation, largest_size)
    sigma = sigma_of(plan, largest_size, beside)
    terms = Terms(
        experiment=experiment,
        mode=plan.mode,
        p=plan.p,
        q=plan.q,
        clip_norm=plan.clip_norm,
        clipping=plan.clipping,
        cap=plan.cap,
        noise_multiplier=sigma,
        rounds=plan.rounds,
        rounds_per_invitation=plan.rounds_per_invitation,
        unit=plan.unit,
        **subject_of(
            data,
            task,
            model=None if plan.model is None else str(plan.model),
            model_options=plan.model_options,
            tuning=plan.tuning,
            task=plan.task,
            task_options=plan.task_options,
        ),
        **masked_fields_of(plan, sigma, sizes, notary),
    )
    _require_within_budget(plan, terms, largest_size, beside)
    return terms


def _evaluation(plan: Plan, largest_size: int) -> EvaluationSettings | None:
    """Return how the model is measured on clients' records, with the noise that its ε needs."""
    scheme = plan.mode.scheme
    if plan.evaluation_epsilon is None or scheme is None:
        return None
    sigma = least_sigma(
        scheme,
        p=plan.p,
        q=plan.q,
        d=largest_size,
        epsilon=plan.evaluation_epsilon,
        delta=plan.delta,
        rounds=math.ceil(plan.rounds / plan.evaluate_every),
        cap=plan.cap,
    )
    return EvaluationSettings(
        every=plan.evaluate_every, noise_multiplier=sigma, metrics=plan.evaluation_metrics
    )


def _evaluation_rounds(plan: Plan, evaluation: EvaluationSettings | None, size: int) -> Rounds:
    """Return what all evaluations cost a client of a size."""
    if evaluation is None or plan.mode.scheme is None:
        return []
    cost = plan.mode.scheme(Round(plan.p, plan.q, size, evaluation.noise_multiplier, plan.cap))
    return [(cost, math.ceil(plan.rounds / evaluation.every))]


def masked_fields_of(
    plan: Plan, sigma: float, sizes: Sequence[int], notary: X25519PrivateKey
) -> dict[str, Any]:
    """Return what mode masked adds to the terms."""
    if not plan.mode.masks_sums:
        return {}
    return masked_fields(
        sizes=sizes,
        q=plan.q,
        cap=plan.cap,
        clip_norm=plan.clip_norm,
        noise_multiplier=sigma,
        notaries=[public_bytes(notary).hex()],
        threshold=plan.threshold,
        colluders=plan.colluders,
    )


def sigma_of(plan: Plan, largest_size: int, beside: Rounds = ()) -> float:
    """Return the noise that was stated, or that the budget needs.

    Args:
        plan: What is asked for.
        largest_size: Of a client.
        beside: Other rounds that the budget must cover, too.
    """
    scheme = plan.mode.scheme
    if scheme is None:
        return 0.0
    if plan.sigma is not None:
        return plan.sigma
    if plan.epsilon is None:
        raise UserError("Neither sigma nor epsilon is stated; state at least one of them.")
    return least_sigma(
        scheme,
        p=plan.p,
        q=plan.q,
        d=largest_size,
        epsilon=plan.epsilon,
        delta=plan.delta,
        rounds=plan.rounds,
        cap=plan.cap,
        beside=beside,
    )


def _require_within_budget(plan: Plan, terms: Terms, largest_size: int, beside: Rounds) -> None:
    """Refuse noise that costs more than the budget that is stated beside it.

    Raises:
        ValueError: With what it costs, and what to change.
    """
    cost = terms.round_cost(largest_size)
    if cost is None or plan.sigma is None or plan.epsilon is None:
        return
    spent = epsilon_after([*beside, (cost, terms.rounds)], plan.delta)
    if not spent <= plan.epsilon:
        raise UserError(
            f"sigma = {plan.sigma:g} costs epsilon = {rounded_up(spent, 6)} at delta = "
            f"{plan.delta:g} over {terms.rounds:,} rounds, more than the stated epsilon = "
            f"{plan.epsilon:g}; state more noise or fewer rounds, or leave out sigma to have it "
            "calibrated."
        )


def _write_client(
    cluster: Cluster, plan: Plan, data: str, share: Share, size: int, parameters: int
) -> None:
    index = share.index
    terms = cluster.terms
    cost = terms.round_cost(size)
    budget = plan.epsilon
    if budget is None:  # nobody stated one: as much as the stated noise costs
        beside = [(each.round_cost(size), each.rounds) for each in cluster.queries]
        priced = [(each, rounds) for each, rounds in [*beside, (cost, terms.rounds)] if each]
        spent = epsilon_after(priced, plan.delta) if priced else 0.0
        budget = spent * _ROOM
    seed, weights = plan.insecure_seed, plan.tuning.pretrained
    clients = cluster.folder / "clients"
    if cluster.notary is not None:
        cluster.notary.registry.allow(make_node_key(clients, f"client-{index}").path)
    policy = Policy.for_terms(
        terms,
        data_set=f"share-{index}",
        data=data,
        ledger=Path(cluster.ledger(index).name),
        declared_size=size,
        budget=Budget(epsilon=budget, delta=plan.delta),
        loaders=frozenset({data}) if is_own_loader(data) else frozenset(),
        pretrained=() if weights is None else (weights.absolute(),),
        most_parameters=parameters,
        device=plan.device,
        schema=None if plan.schema is None else Path("..") / cluster.schema.name,
        share=share,
        insecure_seed=None if seed is None else seed * 1000 + index,
        signing_key=None if cluster.notary is None else Path(f"client-{index}.key"),
        beside=cluster.queries,
    )
    path = clients / f"client-{index}.toml"
    path.write_text(policy.to_toml())
    Ledger.create(cluster.ledger(index), policy.data_set).close()
