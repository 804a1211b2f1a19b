"""The model that the terms name, tried on this client's kind of data before it is used."""

from __future__ import annotations

import logging

import numpy as np
import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.client.data import LocalData
from coinflower.learning import build_model, clipped_gradient_sum, count_parameters, to_tensor
from coinflower.protocol.policy import Refusal, RefusedError
from coinflower.protocol.terms import Terms

logger = logging.getLogger("coinflower.client")


def build_fitting_model(terms: Terms, data: LocalData, most_parameters: int) -> nn.Module:
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
    blank = to_tensor(np.zeros((1, *data.inputs.shape[1:]), dtype=data.inputs.dtype))
    clipped_gradient_sum(model, blank, torch.zeros(1, dtype=torch.int64), terms.clip_norm)
    with torch.no_grad():
        classes = model(blank).shape[1]
    if classes != terms.classes:
        raise UserError(
            f"the model {terms.model!r} has {classes} classes, the terms {terms.classes}"
        )
    if data.targets.max(initial=0) >= terms.classes:
        logger.warning("Records with classes beyond the model's are left out.")
    return model
