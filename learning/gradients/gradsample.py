"""Clipped gradient sums from Opacus' per-sample gradients: slower, for nearly any layer."""

import copy
import warnings
from contextlib import AbstractContextManager

import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.gradients.per_record import (
    NOBODY,
    Inputs,
    Loss,
    exact,
    exact_device,
    summed,
    trainable_parameters,
)
from coinflower.learning.gradients.units import Rows, UnitGradients

_REPLACEMENTS: dict[type[nn.Module], str] = {
    nn.RNN: "DPRNN",
    nn.GRU: "DPGRU",
    nn.LSTM: "DPLSTM",
    nn.RNNCell: "DPRNNCell",
    nn.GRUCell: "DPGRUCell",
    nn.LSTMCell: "DPLSTMCell",
    nn.MultiheadAttention: "DPMultiheadAttention",
}


def refuse_unsupported(model: nn.Module) -> None:
    """Refuse by name the layers whose per-record gradients Opacus cannot or does not compute.

    Raises:
        ValueError: Naming the first such layer and why.
    """
    from opacus.validators import ModuleValidator

    for name, module in model.named_modules():
        if not trainable_parameters(module):
            continue  # whatever it computes, it is constant
        use = _REPLACEMENTS.get(type(module))
        if use is not None:
            home = "opacus.layers.dp_rnn" if use.endswith("Cell") else "opacus.layers"
            raise UserError(
                f"layer {name!r} ({type(module).__name__}) has no gradient of a single record: "
                f"replace it with {use} (from {home} import {use})"
            )
        validator = ModuleValidator.VALIDATORS.get(type(module))
        errors = validator(module) if validator is not None else []
        if errors:
            raise UserError(
                f"layer {name!r} ({type(module).__name__}) has no gradient of a single record: "
                f"{errors[0]}"
            )
        if getattr(module, "padding_mode", "zeros") != "zeros":
            raise UserError(
                f"padding_mode = {module.padding_mode!r} of layer {name!r} must be 'zeros' in a "
                "model with layers that need Opacus: pad with a separate nn.Module"
            )


class PerRecordModel:
    """A copy of the model that computes one gradient per record; the original stays untouched.

    Args:
        model: Any model whose layers keep records apart.
        loss: The loss of each record.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        from opacus.grad_sample import GradSampleModule

        refuse_unsupported(model)
        self._loss = loss
        twin = copy.deepcopy(model)
        for module in twin.modules():
            if getattr(module, "inplace", False):
                vars(module)["inplace"] = False  # Opacus' hooks do not allow it
        for name, module in twin.named_modules():
            if module.training or not trainable_parameters(module, recurse=False):
                continue
            if type(module) not in GradSampleModule.GRAD_SAMPLERS:
                raise UserError(
                    f"layer {name!r} ({type(module).__name__}) is in eval mode, but its per-record "
                    "gradients exist only in train mode: call train() on it"
                )
            # Opacus' hooks look at this flag; these layers compute the same in either mode.
            module.training = True
        try:
            self._model = GradSampleModule(twin, loss_reduction="sum")
        except NotImplementedError as error:
            raise UserError(
                f"the model has a layer without per-record gradients, replace it: {error}"
            ) from error
        self._parameters = trainable_parameters(self._model)
        self._originals = trainable_parameters(model)

    def gradients(
        self,
        inputs: Inputs,
        targets: torch.Tensor,
        *,
        watching: AbstractContextManager[None] = NOBODY,
    ) -> list[UnitGradients]:
        """Return the gradients of one chunk of records; the forward pass runs in the context."""
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            with watching:
                loss = summed(self._loss, self._model(*inputs), targets)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
        return [
            Rows(parameter=original, rows=self._take(parameter, len(targets)))
            for original, parameter in zip(self._originals, self._parameters, strict=True)
        ]

    @staticmethod
    def _take(parameter: nn.Parameter, records: int) -> torch.Tensor:
        gradient: torch.Tensor | None = getattr(parameter, "grad_sample", None)
        parameter.grad = None
        parameter.grad_sample = None  # type: ignore[attr-defined]
        if gradient is None:
            return torch.zeros(records, parameter.numel(), device=exact_device(parameter.device))
        if gradient.shape[0] != records:
            raise UserError(
                f"a parameter of shape {tuple(parameter.shape)} has {gradient.shape[0]} gradients "
                f"for {records} records: keep the batch dimension first in the model"
            )
        return exact(gradient.flatten(1))
