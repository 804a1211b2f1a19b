"""The model that the terms name, tried on this client's kind of data before it is used."""

from __future__ import annotations

import logging

import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning import Records, build_model, clipped_gradient_sum, count_parameters
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
    model = build_model(terms.model, classes=terms.classes)
    parameters = count_parameters(model)
    if not parameters <= most_parameters:
        detail = f"the model has {parameters} parameters > most_parameters = {most_parameters}"
        raise RefusedError(Refusal.EXTENT, detail)
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
