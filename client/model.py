"""The model that the terms name, tried on this client's kind of data before it is used."""

from __future__ import annotations

import logging

import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import Records, clipped_gradient_sum, model_of, size_of
from coinflower.protocol.policy import Refusal, RefusedError
from coinflower.protocol.terms import Terms

logger = logging.getLogger("coinflower.client")


def build_fitting_model(terms: Terms, data: Records, most_parameters: int) -> nn.Module:
    """Return the model of the terms, if it is not too large and fits the data.

    A trial on a blank row shows now, not in a round, whether they do; it depends on no record.

    Raises:
        RefusedError: It has more parameters than the owner allows.
        ValueError: The model is unknown, or has another number of classes than the terms.
        Exception: Whatever the owner's own model raises.
    """
    shape = data.inputs.shape[1:]
    if terms.row_shape not in (None, shape):
        raise UserError(f"the model is made for rows of shape {terms.row_shape}, not {shape}")
    _require_at_most(most_parameters, size_of(terms))  # before there is memory for them
    model = model_of(terms)
    _require_at_most(most_parameters, sum(each.numel() for each in model.parameters()))
    if not data.are_classified:
        raise UserError("the targets of the data are numbers, but the terms ask for classes")
    blank, target = data.blank_row()
    clipped_gradient_sum(model, blank, target, terms.clip_norm)
    with torch.no_grad():
        classes = model(*blank).shape[1]
    if classes != terms.classes:
        raise UserError(
            f"the model {terms.model!r} has {classes} classes, the terms {terms.classes}"
        )
    if data.targets.max(initial=0) >= terms.classes:
        logger.warning("Records with classes beyond the model's are left out.")
    return model


def _require_at_most(most_parameters: int, parameters: int | None) -> None:
    if parameters is not None and parameters > most_parameters:
        detail = f"the model has {parameters} parameters > most_parameters = {most_parameters}"
        raise RefusedError(Refusal.EXTENT, detail)
