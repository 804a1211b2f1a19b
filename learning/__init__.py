"""Model, data, clipped gradient sums, noise and the update."""

from learning.clipped import clipped_gradient_sum, refuse_mixing_layers
from learning.data import load_data
from learning.dataset import Dataset, to_tensor
from learning.fit import model_for
from learning.lattice import FixedPoint, add_noise, fine_cell
from learning.models import build_model, count_parameters, flatten_parameters, load_parameters
from learning.partitions import partition
from learning.randomness import Randomness, SecureRandom, SeededRandom
from learning.update import evaluate, mean_gradient, sgd_step

__all__ = [
    "Dataset",
    "FixedPoint",
    "Randomness",
    "SecureRandom",
    "SeededRandom",
    "add_noise",
    "build_model",
    "clipped_gradient_sum",
    "count_parameters",
    "evaluate",
    "fine_cell",
    "flatten_parameters",
    "load_data",
    "load_parameters",
    "mean_gradient",
    "model_for",
    "partition",
    "refuse_mixing_layers",
    "sgd_step",
    "to_tensor",
]
