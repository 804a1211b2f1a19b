"""Model, data, clipped gradient sums, noise and the update."""

from coinflower.learning.data.dataset import Dataset, with_test_part
from coinflower.learning.data.loading import load_data
from coinflower.learning.data.partitions import partition
from coinflower.learning.data.records import Records, to_tensor
from coinflower.learning.fit import (
    model_for,
    require_vocabulary,
    shape_for,
    trial,
    usual_model_for,
)
from coinflower.learning.gradients.cap import cap_factors, capped_sum
from coinflower.learning.gradients.clipped import clipped_gradient_sum, refuse_mixing_layers
from coinflower.learning.gradients.clipping import Groups
from coinflower.learning.models.build import build_model, model_of, size_of
from coinflower.learning.models.parameters import (
    count_parameters,
    flatten_parameters,
    load_parameters,
)
from coinflower.learning.noise import FixedPoint, add_noise, fine_cell
from coinflower.learning.optimizer import Optimizer, Update
from coinflower.learning.randomness import Randomness, SecureRandom, SeededRandom
from coinflower.learning.update import evaluate, mean_gradient

__all__ = [
    "Dataset",
    "FixedPoint",
    "Groups",
    "Optimizer",
    "Randomness",
    "Records",
    "SecureRandom",
    "SeededRandom",
    "Update",
    "add_noise",
    "build_model",
    "cap_factors",
    "capped_sum",
    "clipped_gradient_sum",
    "count_parameters",
    "evaluate",
    "fine_cell",
    "flatten_parameters",
    "load_data",
    "load_parameters",
    "mean_gradient",
    "model_for",
    "model_of",
    "partition",
    "refuse_mixing_layers",
    "require_vocabulary",
    "shape_for",
    "size_of",
    "to_tensor",
    "trial",
    "usual_model_for",
    "with_test_part",
]
