import importlib
import subprocess
import sys

import pytest

from coinflower.learning.vision import torchvision_datasets, torchvision_models


def test_torchvisions_data_sets_import_beside_any_build_of_torch():
    assert torchvision_datasets().MNIST is torchvision_datasets().MNIST


def test_another_failure_of_the_import_is_not_papered_over(monkeypatch):
    def fail(name: str) -> None:
        raise RuntimeError("something else is wrong")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        torchvision_datasets()


def test_torchvisions_models_import_beside_any_build_of_torch():
    assert torchvision_models().resnet18 is torchvision_models().resnet18


def test_a_module_of_ones_own_may_import_torchvision_in_a_fresh_process(tmp_path):
    (tmp_path / "at_import.py").write_text(
        "from torchvision.models import resnet18\n"
        "def build(classes):\n    return resnet18(num_classes=classes)\n"
    )
    (tmp_path / "at_call.py").write_text(
        "def build(classes):\n    from torchvision.models import resnet18\n"
        "    return resnet18(num_classes=classes)\n"
    )
    for name in ("at_import", "at_call"):
        script = (
            f"from coinflower.learning import build_model; build_model('{name}:build', classes=3)"
        )
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=120)
