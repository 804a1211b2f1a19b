import importlib

import pytest

from coinflower.learning.data.vision import torchvision_datasets


def test_torchvisions_data_sets_import_beside_any_build_of_torch():
    assert torchvision_datasets().MNIST is torchvision_datasets().MNIST


def test_another_failure_of_the_import_is_not_papered_over(monkeypatch):
    def fail(name: str) -> None:
        raise RuntimeError("something else is wrong")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        torchvision_datasets()
