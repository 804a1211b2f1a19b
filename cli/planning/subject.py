"""What a plan's terms say of data, task and model: by public data that is here, or as stated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coinflower.accounting import validation
from coinflower.accounting.errors import UserError
from coinflower.cli.options.learning import LearningOptions
from coinflower.cli.options.model import parse_shape
from coinflower.deploy.terminal import warn
from coinflower.protocol.planning.planner import USUAL_PARAMETERS
from coinflower.protocol.policy import BUILT_IN_MODELS
from coinflower.protocol.terms import CLASSIFICATION
from coinflower.protocol.usual import usual_model

if TYPE_CHECKING:
    from torch import nn

    from coinflower.learning import Dataset


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What learns what.

    Attributes:
        fields: What the terms say of it, by their names.
        parameters: How many of the model's parameters are trained.
        all_parameters: How many it has in all.
    """

    fields: dict[str, Any]
    parameters: int = USUAL_PARAMETERS
    all_parameters: int = 0


def load_public(data: str, learning: LearningOptions) -> Dataset | None:
    """Return public data that is here; None for names, whose data need not be.

    Raises:
        ValueError: It cannot be read.
    """
    from coinflower.learning import load_data
    from coinflower.learning.data.own_loader import is_own_loader

    if not (Path(data).expanduser().exists() or is_own_loader(data)):
        return None
    return load_data(data, schema=learning.schema, numbers=None)


def subject_of_plan(
    public: Dataset | None,
    data: str,
    learning: LearningOptions,
    *,
    classes: int | None,
    row_shape: str | None,
) -> Subject:
    """Return what learns what.

    Args:
        public: The public data, if it is here.
        data: Its name or path.
        learning: What a person said of it.
        classes: The number of classes or outputs that a person stated.
        row_shape: The shape of a record that a person stated.

    Raises:
        ValueError: Data, task and model do not go together, or too little is known of them.
    """
    if public is None:
        return _stated(data, learning, classes, row_shape)
    return _by(public, learning, classes, row_shape)


def _by(
    public: Dataset, learning: LearningOptions, classes: int | None, row_shape: str | None
) -> Subject:
    """Return what public data says, tried out: a model that does not fit is refused now."""
    from coinflower.learning import make_task, model_for, subject_of, task_for, usual_task

    if row_shape is not None:
        raise UserError(f"--row-shape {row_shape} must be left out: {public.name} says it.")
    asked = learning.fields()
    options = asked["task_options"]
    name = asked["task"] or usual_task(public)
    task = task_for(public, name, options)
    if classes is not None:
        if name != CLASSIFICATION or classes < task.outputs:
            raise UserError(
                f"--classes {classes} does not suit {public.name}: task {name} has {task.outputs} "
                "outputs there."
            )
        task = make_task(name, options, outputs=classes)
    about = {key: asked[key] for key in ("model", "model_options", "tuning", "task_options")}
    fields = subject_of(public, task, task=name, **about) | {"clipping": learning.clipping}
    if not _is_here(fields["model"]):
        return Subject(fields=fields)
    made = {"options": asked["model_options"], "tuning": asked["tuning"]}
    return _counted(fields, model_for(fields["model"], public, task, **made))


def _stated(
    data: str, learning: LearningOptions, classes: int | None, row_shape: str | None
) -> Subject:
    """Return what is known of data that is not here."""
    from coinflower.learning import build_model, make_task, tuning_fields
    from coinflower.learning.data.named import KNOWN
    from coinflower.learning.models.build import MADE_TO_MEASURE

    if learning.schema is not None:
        raise UserError(
            f"--schema {learning.schema} goes with a public table that is here; name it: --data."
        )
    known_shape, known_classes = KNOWN.get(data, (None, None))
    shape = known_shape if row_shape is None else parse_shape(row_shape)
    if shape is None:
        raise UserError(
            f"data {data!r} is not here, so state the shape of a record, such as --row-shape 12 "
            "for 12 columns, and --classes."
        )
    asked = learning.fields()
    name, model = asked["task"] or CLASSIFICATION, asked["model"] or usual_model(shape)
    task = make_task(name, asked["task_options"], outputs=_outputs(name, classes, known_classes))
    fields = {
        "model": model,
        "classes": task.outputs,
        "task": name,
        "task_options": asked["task_options"],
        "row_shape": shape if model in MADE_TO_MEASURE else None,
        "model_options": asked["model_options"],
        **tuning_fields(asked["tuning"]),
        "clipping": learning.clipping,
    }
    if not _is_here(model):
        return Subject(fields=fields)
    made = {"row_shape": fields["row_shape"], "options": asked["model_options"]}
    built = build_model(model, classes=task.outputs, tuning=asked["tuning"], **made)
    return _counted(fields, built)


def _outputs(task: str, stated: int | None, known: int | None) -> int:
    if stated is not None:
        validation.require_count("classes", stated, least=1)
        return stated
    if task == CLASSIFICATION and known is not None:
        return known
    if task in ("binary", "regression"):
        return 1
    raise UserError(f"State --classes: how many numbers the model of task {task} answers with.")


def _is_here(model: str) -> bool:
    """Return whether a model can be built on this machine; others need not be installed here."""
    from coinflower.learning.own_code import own_function

    if model in BUILT_IN_MODELS or ":" not in model:
        return True
    try:
        own_function(f"model {model!r}", model, "one that takes the number of classes")
    except ValueError as error:
        warn(f"{error}: its learning rate is that of a model of {USUAL_PARAMETERS:,} parameters.")
        return False
    return True


def _counted(fields: dict[str, Any], model: nn.Module) -> Subject:
    from coinflower.learning import count_parameters

    every = sum(each.numel() for each in model.parameters())
    return Subject(fields=fields, parameters=count_parameters(model), all_parameters=every)
