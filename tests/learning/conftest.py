import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    beside = Path(__file__).parents[3] / "shared" / "data"
    path = Path(os.environ.get("COINFLOWER_DATA", beside))
    if not (path / "mnist").is_dir():
        pytest.skip(f"no folder mnist in {path}: set COINFLOWER_DATA to where MNIST is kept")
    return path
