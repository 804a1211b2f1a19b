"""The server's step: SGD, Adam or AdamW on a flat vector, a schedule, and averaged weights.

All of it works on noisy sums only: it is post-processing and costs no ε. So it belongs to the
server's settings, not to the terms that clients agree to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from coinflower.accounting.errors import UserError
from coinflower.protocol.strict import Index, Positive, strict

Vector = NDArray[np.float32]
Share = Annotated[float, Field(ge=0, lt=1)]

USUAL_LEARNING_RATE = {"sgd": 2.0, "adam": 0.01, "adamw": 0.01}
"""Step size of whoever does not choose one."""
_USUAL_FOR_NUMBERS = 0.3  # a wrong number has a longer gradient than a wrong class
# Averaged weights forget the first rounds sooner than the decay says, as is usual.
_AVERAGING_WARM_UP = 10
_FIRST_MOMENTUM = 0.9  # of Adam
_AVERAGED = "averaged"
_STEPS = "steps"


@strict
class Update:
    """How the server turns a noisy mean gradient into the next model.

    Attributes:
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        learning_rate: Step size; the usual one of the optimizer by default.
        momentum: Share of the old direction in the new; 0 by default for SGD, 0.9 for Adam, whose
            first moment it is.
        second_momentum: The same for Adam's squares.
        damping: Added to the root of Adam's squares.
        nesterov: Look ahead by the momentum; SGD only.
        weight_decay: Pull towards zero; within the gradient, or beside it for AdamW.
        schedule: ``constant``, or ``cosine``, which falls to zero in the last round.
        warm_up_rounds: Rounds in which the step size grows to its full value.
        averaging: Decay of the running average of the weights that is kept as the model; None
            keeps the weights themselves.
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: Positive | None = None
    momentum: Share | None = None
    second_momentum: Share = 0.999
    damping: Positive = 1e-8
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    warm_up_rounds: Index = 0
    averaging: Share | None = None

    def __post_init__(self) -> None:
        """Check what concerns several fields."""
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise UserError("nesterov = true needs optimizer = 'sgd' and a momentum above 0.")

    @property
    def step_size(self) -> float:
        """The learning rate before the schedule."""
        return self.learning_rate or USUAL_LEARNING_RATE[self.optimizer]

    def rate(self, round_: int, rounds: int) -> float:
        """Return the learning rate of a round, 1 to rounds.

        It depends on the round's number alone, so a run that is resumed continues where it was.
        """
        if round_ <= self.warm_up_rounds:
            return self.step_size * round_ / (self.warm_up_rounds + 1)
        if self.schedule == "constant":
            return self.step_size
        done = (round_ - 1 - self.warm_up_rounds) / max(1, rounds - self.warm_up_rounds)
        return self.step_size * (1 + math.cos(math.pi * done)) / 2

    def to_fields(self) -> dict[str, Any]:
        """Return what is stated as plain values."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def describe(self) -> str:
        """Return the update in a few words."""
        words = [f"{self.optimizer}, learning rate {self.step_size:g}"]
        if self.momentum is not None:
            words.append(f"{'Nesterov ' if self.nesterov else ''}momentum {self.momentum:g}")
        if self.weight_decay:
            words.append(f"weight decay {self.weight_decay:g}")
        if self.schedule != "constant":
            words.append(f"{self.schedule} schedule")
        if self.warm_up_rounds:
            words.append(f"{self.warm_up_rounds} rounds of warm-up")
        if self.averaging is not None:
            words.append(f"weights averaged with decay {self.averaging:g}")
        return ", ".join(words)


class Optimizer:
    """A model on its way: its weights, and what the next step needs to know of earlier ones.

    Args:
        update: How to step.
        weights: Where to begin; copied.
        rounds: How many rounds the schedule is for.
        memory: What `memory` returned before an interruption.

    Raises:
        ValueError: The memory is that of another optimizer or another model.
    """

    def __init__(
        self,
        update: Update,
        weights: Vector,
        *,
        rounds: int,
        memory: Mapping[str, NDArray[np.generic]] | None = None,
    ) -> None:
        self._update = update
        self._rounds = rounds
        self._weights = torch.from_numpy(weights.astype(np.float32))
        self._moments: dict[str, torch.Tensor] = {}
        self._steps = 0
        self._averaged = weights.astype(np.float32) if update.averaging is not None else None
        if memory:
            self._remember(memory)

    @property
    def weights(self) -> Vector:
        """The weights that the next round begins with."""
        weights: Vector = self._weights.numpy()
        return weights

    @property
    def kept(self) -> Vector:
        """The model to keep: the averaged weights if they are averaged."""
        return self.weights if self._averaged is None else self._averaged

    @property
    def memory(self) -> dict[str, NDArray[np.generic]]:
        """All that a resumed run needs beside the weights, by name."""
        tensors: dict[str, NDArray[np.generic]] = {
            name: moment.numpy() for name, moment in self._moments.items()
        }
        if self._averaged is not None:
            tensors[_AVERAGED] = self._averaged
        return {**tensors, _STEPS: np.array([self._steps], dtype=np.int64)}

    def step(self, gradient: Vector, round_: int) -> None:
        """Take the step of a round; arrays that were handed out before do not change."""
        self._steps += 1
        rate = self._update.rate(round_, self._rounds)
        take = self._step_of_sgd if self._update.optimizer == "sgd" else self._step_of_adam
        weights = self._weights.clone()
        take(weights, torch.from_numpy(gradient), rate)
        self._weights = weights
        if self._averaged is not None:
            assert self._update.averaging is not None
            warm_up = self._steps / (_AVERAGING_WARM_UP + self._steps)
            decay = np.float32(min(self._update.averaging, warm_up))
            self._averaged = decay * self._averaged + (1 - decay) * self.weights

    # The functions of torch.optim; its classes import torch's compiler, which would cost every
    # server a second.
    def _step_of_sgd(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        update, buffers = self._update, [self._moments.get("momentum_buffer")]
        sgd(
            [weights],
            [gradient],
            buffers,
            foreach=False,
            weight_decay=update.weight_decay,
            momentum=update.momentum or 0.0,
            lr=rate,
            dampening=0.0,
            nesterov=update.nesterov,
            maximize=False,
        )
        if buffers[0] is not None:
            self._moments["momentum_buffer"] = buffers[0]

    def _step_of_adam(self, weights: torch.Tensor, gradient: torch.Tensor, rate: float) -> None:
        update, step = self._update, adamw if self._update.optimizer == "adamw" else adam
        for name in _MOMENTS["adam"]:
            self._moments.setdefault(name, torch.zeros_like(weights))
        step(
            [weights],
            [gradient],
            [self._moments["exp_avg"]],
            [self._moments["exp_avg_sq"]],
            [],
            [torch.tensor(self._steps - 1.0)],
            foreach=False,
            amsgrad=False,
            beta1=_FIRST_MOMENTUM if update.momentum is None else update.momentum,
            beta2=update.second_momentum,
            lr=rate,
            weight_decay=update.weight_decay,
            eps=update.damping,
            maximize=False,
        )

    def _remember(self, memory: Mapping[str, NDArray[np.generic]]) -> None:
        expected = {_STEPS, *_MOMENTS[self._update.optimizer]}
        if self._update.optimizer == "sgd" and not self._update.momentum:
            expected = {_STEPS}
        if self._averaged is not None:
            expected.add(_AVERAGED)
        self._steps = int(memory[_STEPS][0])
        if self._steps == 0:
            expected -= {"momentum_buffer", "exp_avg", "exp_avg_sq"}
        # A buffer that nobody needs does no harm; SGD without momentum used to keep one.
        spare = {"momentum_buffer"} if self._update.optimizer == "sgd" else set()
        if not expected <= set(memory) <= expected | spare or any(
            value.shape != self.weights.shape for name, value in memory.items() if name != _STEPS
        ):
            raise UserError(
                f"The state that was kept is not one of {self._update.describe()}; resume with the "
                "update that the run began with."
            )
        for name in expected - {_STEPS, _AVERAGED}:
            self._moments[name] = torch.from_numpy(memory[name].astype(np.float32))
        if self._averaged is not None:
            self._averaged = memory[_AVERAGED].astype(np.float32)


def usual_for(update: Update, *, numbers: bool) -> Update:
    """Return an update with a step size for what is predicted, unless somebody chose one."""
    if numbers and update.learning_rate is None and update.optimizer == "sgd":
        return replace(update, learning_rate=_USUAL_FOR_NUMBERS)
    return update


def kept_memory(
    tensors: Mapping[str, NDArray[np.generic]], *, steps: int, size: int
) -> dict[str, NDArray[np.generic]]:
    """Return the memory that a file holds, by the names that earlier versions gave it as well.

    Raises:
        ValueError: It is not one that any optimizer left.
    """
    memory = dict(tensors)
    if "velocity" in memory:
        memory["momentum_buffer"] = memory.pop("velocity")
        memory[_STEPS] = np.array([steps], dtype=np.int64)
    for name, value in memory.items():
        wanted, shape = (np.int64, (1,)) if name == _STEPS else (np.float32, (size,))
        if value.dtype != wanted or value.shape != shape or not np.isfinite(value).all():
            raise UserError(f"{name} does not hold {shape[0]} finite values of {wanted.__name__}")
    if _STEPS not in memory or memory[_STEPS][0] < 0:
        raise UserError("it does not say how many steps were taken")
    return memory


_MOMENTS = {"sgd": ("momentum_buffer",), "adam": (m := ("exp_avg", "exp_avg_sq")), "adamw": m}
