"""Models by name: those that are built in, and the user's own."""

import difflib
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from coinflower.accounting.errors import UserError
from coinflower.learning.models.frozen import WeightFiles
from coinflower.learning.models.images import Digits, PaperCnn, Resnet18Gn, TanhCnn
from coinflower.learning.models.options import Shape
from coinflower.learning.models.rows import LinearModel, Mlp
from coinflower.learning.models.sequences import Gru, Transformer
from coinflower.learning.models.tuning import ALL_OF_IT, FineTuning
from coinflower.learning.own_code import blamed_on_its_author, own_function
from coinflower.learning.vision import mending_torchvision
from coinflower.protocol.strict import decode
from coinflower.protocol.terms import Terms


class BuiltIn(Protocol):
    """A built-in model, its options as fields."""

    def build(self, outputs: int, row_shape: Shape, /) -> nn.Module:
        """Return the model."""
        ...


MODELS: dict[str, type[BuiltIn]] = {
    "linear": LinearModel,
    "mlp": Mlp,
    "digits": Digits,
    "paper-cnn": PaperCnn,
    "tanh-cnn": TanhCnn,
    "resnet18-gn": Resnet18Gn,
    "gru": Gru,
    "transformer": Transformer,
}
MADE_TO_MEASURE = frozenset({"linear", "mlp", "resnet18-gn", "gru", "transformer"})
"""Models that are built for rows of a given shape."""

_Builder = Callable[[], nn.Module]


def build_model(
    name: str,
    *,
    classes: int,
    row_shape: Shape | None = None,
    options: Mapping[str, Any] | None = None,
    tuning: FineTuning = ALL_OF_IT,
    seed: int = 0,
) -> nn.Module:
    """Return a model that maps a batch of rows to one row of numbers per record.

    The initial weights depend on the seed alone and are public. Torch's global random state is
    left as it was.

    Args:
        name: One of `MODELS`, or ``package.module:function`` for your own model, where
            ``function(classes)`` returns an ``nn.Module``.
        classes: How many numbers it answers with: one per class, label or quantity to predict.
        row_shape: Shape of a record, without the batch; for models that are made to measure.
        options: Options of the model; your own function takes them as keywords.
        tuning: What it begins with, and which of its parts are trained.
        seed: Seed of the initial weights.

    Raises:
        ValueError: If the name is unknown or does not lead to a model, an option is unknown or out
            of range, the shape is missing or not one that the model takes, or weights or parts are
            not those of the model.
    """
    build = _builder(name, classes, row_shape, dict(options or {}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with blamed_on_its_author(f"model {name!r}"):
            model = mending_torchvision(build)
        if not isinstance(model, nn.Module):
            raise UserError(
                f"model {name!r} returned {type(model).__name__}; it must return a torch nn.Module"
            )
        tuning.apply(model)
    return model


def model_of(terms: Terms, files: WeightFiles | None = None) -> nn.Module:
    """Return the model that the terms name.

    Args:
        terms: The terms.
        files: Where pretrained weights are. Without, the model has the right layers and the wrong
            weights, which is enough to count its parameters.

    Raises:
        ValueError: As `build_model`, or the pretrained weights are not here.
    """
    pretrained = None
    if terms.pretrained is not None and files is not None:
        pretrained = files.find(terms.pretrained)
    return build_model(
        terms.model,
        classes=terms.classes,
        row_shape=terms.row_shape,
        options=terms.model_options,
        tuning=FineTuning(
            pretrained=pretrained, trained_parts=terms.trained_parts, lora_rank=terms.lora_rank
        ),
    )


def size_of(terms: Terms) -> int | None:
    """Return how many parameters the terms' model has, before there is memory for any of them.

    None if only building it can tell. That may be so for a model of one's own, which is tried here
    only if it takes options, because these come from the wire.

    Raises:
        ValueError: As `build_model`.
    """
    is_own = terms.model not in MODELS
    if is_own and not terms.model_options:
        return None
    build = _builder(terms.model, terms.classes, terms.row_shape, terms.model_options)
    try:
        with torch.device("meta"):
            model = mending_torchvision(build)
        return sum(parameter.numel() for parameter in model.parameters())
    except UserError:
        raise
    except Exception:  # whatever a stranger's code does with numbers that are not there
        if is_own:
            return None
        raise


def _builder(name: str, classes: int, row_shape: Shape | None, options: dict[str, Any]) -> _Builder:
    """Return what builds the model, once all that can be known before is in order."""
    if classes < 1:
        raise UserError(f"classes = {classes} must be at least 1")
    if name not in MODELS:
        return functools.partial(_own_model(name), classes, **options)
    if name in MADE_TO_MEASURE and not row_shape:
        raise UserError(
            f"model {name!r} is made to measure: state row_shape, the shape of a record, such as "
            "[12] for a table of 12 columns"
        )
    built_in = decode(MODELS[name], json.dumps(options), f"The model {name!r}")
    return functools.partial(built_in.build, classes, row_shape or ())


def _own_model(name: str) -> Callable[..., nn.Module]:
    module_name, colon, function_name = name.partition(":")
    if not colon or not module_name or not function_name:
        choices = ", ".join(MODELS)
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.5)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(
            f"model {name!r} is unknown{hint}: choose one of {choices}, or package.module:function"
        )
    return own_function(f"model {name!r}", name, "one that takes the number of classes")
