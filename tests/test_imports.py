"""Imports go one way: each package may use only those before it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "accounting": set(),
    "protocol": {"accounting"},
    "learning": {"accounting", "protocol"},
    "client": {"accounting", "protocol", "learning"},
    "server": {"accounting", "protocol", "learning"},
    "experiments": {"accounting", "protocol", "learning", "client", "server"},
    "deploy": {"accounting", "protocol", "learning", "client", "server", "experiments"},
}
HEAVY = {
    "accounting": {"torch", "flwr", "opacus", "torchvision"},
    "protocol": {"torch", "flwr"},
    "learning": {"flwr"},
}


def imported_packages(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_follow_the_arrow(package):
    forbidden = set(MAY_IMPORT) - MAY_IMPORT[package] - {package} | HEAVY.get(package, set())
    files = list((ROOT / package).rglob("*.py"))
    assert files
    broken = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imported_packages(file)
        if name in forbidden
    }
    assert not broken
