"""What `run`, `simulate` and `plan` are told alike: what is protected, and what learns what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from coinflower.cli.options.model import (
    ClippingOption,
    LoraRank,
    ModelName,
    ModelOptions,
    Pretrained,
    TrainedParts,
    make_tuning,
    parse_options,
)
from coinflower.cli.options.sources import Schema, UnitName
from coinflower.cli.options.task import (
    ClassWeights,
    HuberThreshold,
    LossName,
    TaskName,
    TaskOptions,
    make_task_options,
)
from coinflower.protocol.unit import parse_unit

# Whoever names another model or task has no use for options that were meant for the first one.
_TOGETHER = (
    {"model", "model_option", "model_options"}
    | {"pretrained", "trained_part", "lora_rank", "tuning"},
    {"task", "loss", "huber_threshold", "class_weights", "task_option", "task_options"},
)


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """Options that end up in the terms, whoever plays them."""

    schema: Schema = None
    unit: UnitName = "record"
    clipping: ClippingOption = "flat"
    model: ModelName = None
    model_option: ModelOptions = None
    pretrained: Pretrained = None
    trained_part: TrainedParts = None
    lora_rank: LoraRank = 0
    task: TaskName = None
    loss: LossName = None
    huber_threshold: HuberThreshold = None
    class_weights: ClassWeights = None
    task_option: TaskOptions = None

    def fields(self) -> dict[str, Any]:
        """Return what they say, by the names that plans, requests and wishes share.

        Raises:
            ValueError: One of them makes no sense.
        """
        return {
            "schema": self.schema,
            "unit": parse_unit(self.unit),
            "clipping": self.clipping,
            "model": self.model,
            "model_options": parse_options(self.model_option),
            "tuning": make_tuning(self.pretrained, self.trained_part, self.lora_rank),
            "task": self.task,
            "task_options": make_task_options(
                self.loss, self.huber_threshold, self.class_weights, self.task_option
            ),
        }


def stated_fields(names: Iterable[str]) -> set[str]:
    """Return the names of options that a person stated, and of all that these decide."""
    found = set(names)
    return found.union(*(group for group in _TOGETHER if found & group))
