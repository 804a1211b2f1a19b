"""The same random numbers every time, for what is tried out in public."""

import random
from collections.abc import Callable

import numpy as np
import torch


def seeded(compute: Callable[[], torch.Tensor], seed: int = 0) -> torch.Tensor:
    """Compute with the random numbers of a seed, and leave all generators as they were."""
    python, numpys = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            return compute()
    finally:
        random.setstate(python)
        np.random.set_state(numpys)
