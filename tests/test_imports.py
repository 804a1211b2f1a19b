"""Imports go one way, under one name: each package may use only those before it."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import flwr.app
import flwr.clientapp
import flwr.serverapp
import flwr.serverapp.strategy
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "coinflower"
LIBRARY = {"accounting", "protocol", "learning"}
PARTIES = {"client", "server", "notary"}
FLOWER = "flower_internals"
MAY_IMPORT = {
    "accounting": set(),
    "protocol": {"accounting"},
    "learning": {"accounting", "protocol"},
    "masking": {"accounting", "protocol"},
    FLOWER: set(),
    "client": LIBRARY | {FLOWER, "masking"},
    "server": LIBRARY | {FLOWER, "masking"},
    "notary": {"accounting", "protocol", "masking"},
    "deploy": LIBRARY | {FLOWER, "masking"} | PARTIES,
    "experiments": LIBRARY | {FLOWER, "masking"} | PARTIES,
    "report": LIBRARY | PARTIES | {"deploy", "experiments"},
    "cli": LIBRARY | PARTIES | {"deploy", "experiments", "report"},
}
# Inside of a package, rooms that must not know of others.
ROOMS_MAY_IMPORT = {
    "accounting.analyses": {
        "accounting.errors",
        "accounting.mechanism",
        "accounting.patience",
        "accounting.validation",
    },
    "accounting.composition": {
        "accounting.analyses",
        "accounting.errors",
        "accounting.mechanism",
        "accounting.patience",
        "accounting.rounding",
        "accounting.validation",
    },
    "learning.data": {
        "accounting.errors",
        "learning.own_code",
        "learning.vision",
        "protocol.foreign",
        "protocol.strict",
        "protocol.unit",
    },
    "learning.gradients": {"accounting.errors"},
    "learning.tasks": {
        "accounting.errors",
        "learning.data",
        "learning.gradients",
        "learning.own_code",
        "protocol.strict",
    },
    "client.node": {"accounting.errors", FLOWER, "protocol"},
    "deploy.flower": {
        "accounting.errors",
        "deploy.core_dumps",
        "deploy.errors",
        FLOWER,
    },
    "deploy.keys": {"accounting.errors"},
}
HEAVY = {
    "accounting": {"torch", "flwr", "opacus", "torchvision"},
    "protocol": {"torch", "flwr"},
    "learning": {"flwr"},
    "masking": {"torch", "flwr"},
    "notary": {"torch"},
}
# Not importing Opacus would defeat the purpose of the accountant for Opacus.
MAY_BE_HEAVY = {"accounting/plugins/opacus.py"}
FLOWERS_PUBLIC_API = {
    module.__name__: set(module.__all__)
    for module in (flwr.app, flwr.clientapp, flwr.serverapp, flwr.serverapp.strategy)
}
OLD_NAMES = set(MAY_IMPORT)
OWN_NAMES = {"coinflower", "tests", "tools"}
LEAST_MODULES = 150
FOLDERS = (*MAY_IMPORT, "tools", "tests", "docs")


def modules(folder):
    return sorted(folder.rglob("*.py"))


def imports(file):
    """Yield the full names that a file imports; for `from a import b` that is a.b."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(file):
    return {
        name.removeprefix("coinflower.") for name in imports(file) if name.startswith("coinflower.")
    }


def within(name, rooms):
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def test_every_folder_of_the_package_is_looked_at():
    linked = {link.name for link in SOURCE.iterdir() if link.is_symlink()}
    assert linked - {"examples"} == set(MAY_IMPORT)  # those are copied, never imported
    assert all((SOURCE / name).resolve() == ROOT / name for name in linked)
    seen = [file for package in MAY_IMPORT for file in modules(ROOT / package)]
    assert len(seen) >= LEAST_MODULES
    assert sum(len(ours(file)) for file in seen) > len(seen)


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_follow_the_arrow(package):
    files = modules(ROOT / package)
    assert files
    allowed = MAY_IMPORT[package] | {package}
    broken = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in ours(file)
        if name.split(".")[0] not in allowed
    }
    assert not broken


@pytest.mark.parametrize("room", ROOMS_MAY_IMPORT)
def test_rooms_know_nothing_of_other_rooms(room):
    files = modules(ROOT / room.replace(".", "/"))
    assert len(files) > 1
    allowed = ROOMS_MAY_IMPORT[room] | {room}
    broken = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in ours(file)
        if not within(name, allowed)
    }
    assert not broken


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_libraries_stay_out(package):
    broken = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in modules(ROOT / package)
        for name in imports(file)
        if name.split(".")[0] in HEAVY[package]
        and file.relative_to(ROOT).as_posix() not in MAY_BE_HEAVY
    }
    assert not broken


def private_to_flower(file):
    """Yield what a file imports of Flower that Flower's public modules do not export."""
    for name in imports(file):
        module, _, attribute = name.rpartition(".")
        if name.split(".")[0] == "flwr" and attribute not in FLOWERS_PUBLIC_API.get(module, ()):
            yield name


@pytest.mark.parametrize("package", sorted(set(MAY_IMPORT) - {FLOWER}))
def test_flowers_private_api_is_used_in_one_room(package):
    broken = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in modules(ROOT / package)
        for name in private_to_flower(file)
    }
    assert not broken


def test_a_private_name_of_flower_would_be_noticed(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "import flwr\nfrom flwr.app import Message, message\nfrom flwr.serverapp import Grid\n"
        "def late():\n    from flwr.proto.node_pb2 import NodeInfo\n"
    )
    assert set(private_to_flower(file)) == {
        "flwr",
        "flwr.app.message",
        "flwr.proto.node_pb2.NodeInfo",
    }
    assert any(list(private_to_flower(file)) for file in modules(ROOT / FLOWER))


@pytest.mark.parametrize("folder", FOLDERS)
def test_nobody_uses_a_name_without_coinflower(folder):
    files = modules(ROOT / folder)
    assert files
    broken = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imports(file)
        if name.split(".")[0] in OLD_NAMES
    }
    assert not broken


def old_modules_named(source):
    """Yield strings such as "server.app:app" that name a module without coinflower."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.match(r"(\w+)\.(\w+)(?=[.:]|$)", node.value)
            if found and found[1] in OLD_NAMES:
                place = ROOT / found[1] / found[2]
                if place.is_dir() or place.with_suffix(".py").exists():
                    yield node.value


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_string_names_a_module_without_coinflower(folder):
    broken = {
        f"{file.relative_to(ROOT)} says {text}"
        for file in modules(ROOT / folder)
        if file != Path(__file__)
        for text in old_modules_named(file.read_text())
    }
    assert not broken


def test_the_installed_package_has_one_name(tmp_path):
    code = (
        "import importlib.util as util\n"
        "import coinflower\n"
        f"print([name for name in {sorted(OLD_NAMES)!r} if util.find_spec(name)])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_the_package_imports_neither_tools_nor_tests(package):
    broken = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in modules(ROOT / package)
        for name in imports(file)
        if name.split(".")[0] in {"tools", "tests"}
    }
    assert not broken


def undeclared(files, declared):
    """Return what the files import of others that no declared distribution provides.

    A library that is not installed is taken to be called like its distribution.
    """
    provided = packages_distributions()
    known = {canonicalize_name(Requirement(text).name) for text in declared}
    return {
        f"{file.name} imports {name}"
        for file in files
        for name in {full.split(".")[0] for full in imports(file)} - sys.stdlib_module_names
        if name not in OWN_NAMES
        and not known & {canonicalize_name(one) for one in provided.get(name, [name])}
    }


def test_every_library_that_is_imported_is_a_declared_dependency(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    product = [file for package in MAY_IMPORT for file in modules(ROOT / package)]
    # An extra is imported by the module that bears its name, and by no other.
    own = {f"{extra}.py imports {extra}" for extra in project["optional-dependencies"]}
    assert undeclared(product, project["dependencies"]) - own == set()
    others = [file for folder in ("tools", "tests") for file in modules(ROOT / folder)]
    extras = [text for extra in project["optional-dependencies"].values() for text in extra]
    assert undeclared(others, project["dependencies"] + extras) == set()
    late = tmp_path / "late.py"
    late.write_text("import json, typer\ndef f():\n    import mpmath.libmp\n")
    assert undeclared([late], ["Typer>=0.1"]) == {"late.py imports mpmath"}


def test_the_arrow_would_be_noticed_if_broken(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "import server.app\nfrom coinflower import cli\n"
        "def late():\n    from coinflower.deploy.errors import DeploymentError\n"
    )
    assert ours(file) == {"cli", "deploy.errors.DeploymentError"}
    assert {name.split(".")[0] for name in imports(file)} & OLD_NAMES == {"server"}
    told = 'A = "server.app:app", "coinflower.server.app", "server.pem", "client.node"\n'
    assert list(old_modules_named(told)) == ["server.app:app", "client.node"]
