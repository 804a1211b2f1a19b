import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    beside = Path(__file__).parents[3] / "shared" / "data"
    path = Path(os.environ.get("COINFLOWER_DATA", beside))
    if not (path / "mnist").is_dir():
        pytest.skip(f"no folder mnist in {path}: set COINFLOWER_DATA to where MNIST is kept")
    return path
