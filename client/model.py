"""The task and the model that the terms name, tried on this client's kind of data before use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import (
    Records,
    Task,
    WeightFiles,
    device_of,
    fingerprint,
    make_task,
    model_of,
    size_of,
    try_out,
)
from coinflower.learning.queries.evaluation import Evaluation
from coinflower.protocol.policy import Policy, Refusal, RefusedError
from coinflower.protocol.query import Query
from coinflower.protocol.terms import Terms


def fitting_task(terms: Terms, data: Records) -> Task:
    """Return the task of the terms, if the targets are of its kind; the log names those that fail.

    Raises:
        RefusedError: It is unknown, has other options, or takes targets of another shape.
    """
    try:
        task = make_task(terms.task, terms.task_options, outputs=terms.classes)
        task.take(data.targets).log_misfits()
    except Exception as error:  # the owner's own task may fail in any way
        raise RefusedError(Refusal.TASK, str(error)) from error
    return task


def require_query(query: Query, task: Task) -> None:
    """Refuse an evaluation by metrics that the task does not have.

    Raises:
        RefusedError: With the reason, which depends on no record.
    """
    try:
        Evaluation(query, task)
    except UserError as error:
        raise RefusedError(Refusal.QUERY, str(error)) from error


@dataclass(frozen=True, kw_only=True)
class ModelRules:
    """What the owner's policy says of models.

    Attributes:
        most_parameters: Largest model.
        files: Where pretrained weights are.
        fingerprints: What models of some names must be.
        device: Where they compute.
    """

    most_parameters: int
    files: WeightFiles = field(default_factory=WeightFiles)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def of(cls, policy: Policy) -> ModelRules:
        """Return the rules of a policy.

        Raises:
            ValueError: There is no such device.
        """
        return cls(
            most_parameters=policy.most_parameters,
            files=WeightFiles(policy.pretrained),
            fingerprints=policy.fingerprints,
            device=device_of(policy.device),
        )


def build_fitting_model(terms: Terms, task: Task, data: Records, rules: ModelRules) -> nn.Module:
    """Return the model of the terms, if it is what the owner allows and fits data and task.

    Raises:
        RefusedError: It has more parameters than the owner allows, begins with weights that are not
            here, or is another one than the owner knows by its name.
        ValueError: The model is unknown, or has another number of outputs than the task.
        Exception: Whatever the owner's own model raises.
    """
    shape = data.inputs.shape[1:]
    if terms.row_shape not in (None, shape):
        raise UserError(f"the model is made for rows of shape {terms.row_shape}, not {shape}")
    _require_at_most(rules.most_parameters, size_of(terms))  # before there is memory for them
    _require_weights(terms, rules)
    model = model_of(terms, rules.files)
    _require_at_most(rules.most_parameters, sum(each.numel() for each in model.parameters()))
    _require_fingerprint(terms.model, model, rules)
    model.to(rules.device)
    try_out(model, terms.model, data, task, clip_norm=terms.clip_norm)
    return model


def _require_weights(terms: Terms, rules: ModelRules) -> None:
    if terms.pretrained is not None:
        try:
            rules.files.find(terms.pretrained)
        except UserError as error:
            raise RefusedError(Refusal.WEIGHTS, str(error)) from error


def _require_fingerprint(name: str, model: nn.Module, rules: ModelRules) -> None:
    wanted = rules.fingerprints.get(name)
    if wanted is not None and fingerprint(model) != wanted:
        detail = f"model {name!r} has fingerprint {fingerprint(model)}, not {wanted}"
        raise RefusedError(Refusal.FINGERPRINT, detail)


def _require_at_most(most_parameters: int, parameters: int | None) -> None:
    if parameters is not None and parameters > most_parameters:
        detail = f"the model has {parameters} parameters > most_parameters = {most_parameters}"
        raise RefusedError(Refusal.EXTENT, detail)
