"""Model, data, clipped gradient sums, noise and the update."""

from coinflower.learning.data.dataset import Dataset, with_test_part
from coinflower.learning.data.loading import load_data
from coinflower.learning.data.partitions import partition
from coinflower.learning.data.records import Records, to_tensor
from coinflower.learning.device import device_of
from coinflower.learning.fit import (
    model_for,
    require_vocabulary,
    shape_for,
    trial,
    try_out,
    usual_model_for,
)
from coinflower.learning.gradients.cap import cap_factors, capped_sum
from coinflower.learning.gradients.clipped import clipped_gradient_sum, refuse_mixing_layers
from coinflower.learning.gradients.clipping import Groups
from coinflower.learning.gradients.per_record import Clipping
from coinflower.learning.models.build import build_model, model_of, size_of
from coinflower.learning.models.fingerprint import fingerprint
from coinflower.learning.models.frozen import WeightFiles, hash_of_weights
from coinflower.learning.models.parameters import (
    count_parameters,
    flatten_parameters,
    load_parameters,
)
from coinflower.learning.models.saving import load_model, saved_model
from coinflower.learning.models.tuning import FineTuning
from coinflower.learning.noise import FixedPoint, add_noise, fine_cell, make_noisy, noisy_counts
from coinflower.learning.optimizer import Optimizer, Update
from coinflower.learning.randomness import Randomness, SecureRandom, SeededRandom
from coinflower.learning.subject import subject_of, tuning_fields
from coinflower.learning.tasks.named import make_task, task_for, usual_task
from coinflower.learning.tasks.task import Metrics, Task
from coinflower.learning.tasks.weighing import loss_of
from coinflower.learning.update import evaluate, mean_gradient, measure

__all__ = [
    "Clipping",
    "Dataset",
    "FineTuning",
    "FixedPoint",
    "Groups",
    "Metrics",
    "Optimizer",
    "Randomness",
    "Records",
    "SecureRandom",
    "SeededRandom",
    "Task",
    "Update",
    "WeightFiles",
    "add_noise",
    "build_model",
    "cap_factors",
    "capped_sum",
    "clipped_gradient_sum",
    "count_parameters",
    "device_of",
    "evaluate",
    "fine_cell",
    "fingerprint",
    "flatten_parameters",
    "hash_of_weights",
    "load_data",
    "load_model",
    "load_parameters",
    "loss_of",
    "make_noisy",
    "make_task",
    "mean_gradient",
    "measure",
    "model_for",
    "model_of",
    "noisy_counts",
    "partition",
    "refuse_mixing_layers",
    "require_vocabulary",
    "saved_model",
    "shape_for",
    "size_of",
    "subject_of",
    "task_for",
    "to_tensor",
    "trial",
    "try_out",
    "tuning_fields",
    "usual_model_for",
    "usual_task",
    "with_test_part",
]
