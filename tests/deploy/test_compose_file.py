"""What can be said about the containers without an engine: schemas, flags, and who may do what."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from coinflower.deploy.containers.compose_clients import OWN_CLIENTS, render
from coinflower.deploy.containers.compose_setup import USER
from tests.support.documents import command_of

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
COMPOSE = ROOT / "docker-compose.yml"
OVERRIDE = ROOT / "docker-compose.untrusted.yml"
MASKED = ROOT / "docker-compose.masked.yml"
DOCKERFILES = [ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "gateway" / "Dockerfile"]
PROJECT = yaml.safe_load(COMPOSE.read_text())
MORE = yaml.safe_load(render(COMPOSE.read_text(), 12))
SETUP = PROJECT["services"]["setup"]
NOTARY = yaml.safe_load(MASKED.read_text())
SERVICES = PROJECT["services"] | {
    name: service
    for more in (MORE, NOTARY)
    for name, service in more["services"].items()
    if name != "setup"
}
LASTING = {name: service for name, service in SERVICES.items() if name != "setup"}
CLIENTS = [f"client-{index}" for index in range(1, 13)]


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def more(tmp_path):
    """Return a written file with further clients."""
    path = tmp_path / "docker-compose.clients.yml"
    path.write_text(render(COMPOSE.read_text(), 12))
    return path


def test_the_compose_files_keep_to_the_schema(more):
    code, told = run(
        sys.executable,
        *("-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"),
        *(str(COMPOSE), str(OVERRIDE), str(MASKED), str(more)),
    )
    assert code == 0, told


def test_docker_compose_understands_the_files(more, docker_compose):
    for files in ([COMPOSE], [COMPOSE, OVERRIDE], [COMPOSE, MASKED], [COMPOSE, more, OVERRIDE]):
        options = [word for file in files for word in ("--file", str(file))]
        code, told = run(str(docker_compose), *options, "config", "-q")
        assert code == 0, told


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.parent.name)
def test_hadolint_finds_nothing(file):
    code, told = run(str(BIN / "hadolint"), str(file))
    assert code == 0, told


def coinflower_calls():
    """Every call of coinflower in the compose file, as the words after its name."""
    for name, service in SERVICES.items():
        if "coinflower" in service["image"] and name not in ("gateway", "setup"):
            yield f"{name} command", service["command"]


@pytest.mark.parametrize(("where", "words"), list(coinflower_calls()), ids=str)
def test_every_option_of_coinflower_exists(where, words):
    command, _, rest = command_of(words)
    assert not hasattr(command, "commands"), f"{where}: {words} names no command"
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    used = {word.split("=")[0] for word in rest if word.startswith("--")}
    assert used <= known, where


def test_every_option_of_other_programs_exists():
    text = "\n".join(file.read_text() for file in DOCKERFILES).replace("\\\n", " ")
    lines = [part for line in re.findall(r"^RUN (.*)$", text, re.M) for part in line.split("&&")]
    lines += [shlex.join(SERVICES["gateway"]["healthcheck"]["test"][1:])]
    helps = {"pip": ("install", "--help"), "install": ("--help",), "curl": ("--help", "all")}
    checked = set()
    for line in lines:
        words = line.split()
        if words[0] not in helps or words[1] == "check" or shutil.which(words[0]) is None:
            continue
        program = [sys.executable, "-m", "pip"] if words[0] == "pip" else [words[0]]
        told = run(*program, *helps[words[0]])[1]
        for option in re.findall(r"(?<!\S)(?:\$\{\S+?:\+)?(--[a-z-]+)", line):
            assert re.search(rf"{option}\b", told), f"{words[0]} has no {option}"
            checked.add(option)
    assert "--no-deps" in checked


def test_only_the_gateway_is_published():
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["gateway"]


def test_networks_lead_from_clients_to_the_gateway_to_the_server_only():
    assert all(PROJECT["networks"][name]["internal"] for name in ("nodes", "inside"))
    reach = {name: set(service.get("networks", [])) for name, service in SERVICES.items()}
    assert reach["server"] == {"inside"}
    assert all(reach[name] == {"nodes"} for name in (*CLIENTS, "notary"))
    assert reach["setup"] == set()
    assert SERVICES["setup"]["network_mode"] == "none"


@pytest.mark.parametrize("name", LASTING)
def test_a_container_may_do_no_more_than_it_must(name):
    service = LASTING[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert "healthcheck" in service
    assert service["ulimits"] == {"core": 0}
    assert service.get("user", f"{USER}:{USER}") == f"{USER}:{USER}"


@pytest.mark.parametrize("name", LASTING)
def test_a_container_takes_no_more_than_its_share_and_comes_back(name):
    service = LASTING[name]
    assert 0 < service["pids_limit"] <= 512
    assert all("size=" in mount for mount in service["tmpfs"])
    assert service["restart"] == "unless-stopped"


def test_health_checks_ask_the_port_that_the_program_answers_on():
    for name, service in LASTING.items():
        if name != "gateway":
            port = service["healthcheck"]["test"][-1]
            assert service["healthcheck"]["test"][:-1] == [
                "CMD",
                "python",
                "-m",
                "coinflower.deploy.machines.health",
            ]
            assert f"--health-port={port}" in service["command"]


def test_images_run_as_a_numbered_user():
    for file in DOCKERFILES:
        assert f"\nUSER {USER}:{USER}\n" in file.read_text()


def test_secrets_are_files_and_each_service_gets_its_own_only():
    for name, service in LASTING.items():
        assert service["secrets"] == [name]
        assert "environment" not in service
        shown = re.findall(r"/run/secrets/([a-z0-9-]+)", str(service))
        assert set(shown) <= {name}
        if name not in MORE["services"]:
            folder = ROOT / (PROJECT["secrets"] | NOTARY["secrets"])[name]["file"]
            assert (folder / ".gitkeep").exists(), "docker needs the folder before keys are made"
        else:
            assert MORE["secrets"][name]["file"] == f"./deploy/secrets/{name}"
    assert "deploy/secrets" in (ROOT / ".dockerignore").read_text().splitlines()


def test_the_notary_s_volume_is_its_own_and_made_by_the_setup():
    mounts = {
        name: [entry for entry in service.get("volumes", []) if entry.startswith("notary:")]
        for name, service in (SERVICES | {"setup": NOTARY["services"]["setup"]}).items()
    }
    assert {name: entries for name, entries in mounts.items() if entries} == {
        "setup": ["notary:/notary"],
        "notary": ["notary:/var/lib/coinflower"],
    }
    assert list(NOTARY["volumes"]) == ["notary"]


def test_clients_share_no_volume():
    volumes = {
        name: {entry.split(":")[0] for entry in SERVICES[name]["volumes"]} for name in CLIENTS
    }
    for name in CLIENTS:
        assert volumes[name] == {f"{name}-data", f"{name}-ledger"}


def test_further_clients_are_like_those_of_the_compose_file():
    names = CLIENTS[OWN_CLIENTS:]
    assert list(MORE["services"]) == ["setup", *names]
    assert list(MORE["secrets"]) == names
    assert [*PROJECT["volumes"], *MORE["volumes"]] == ["server"] + [
        f"{name}-{kind}" for name in CLIENTS for kind in ("data", "ledger")
    ]
    model = str(SERVICES["client-1"])
    for name in CLIENTS:
        assert str(SERVICES[name]) == model.replace("client-1", name)
    mounts = [*SETUP["volumes"], *MORE["services"]["setup"]["volumes"]]
    for volume in (*PROJECT["volumes"], *MORE["volumes"]):
        assert sum(mount.startswith(f"{volume}:") for mount in mounts) == 1
    assert SETUP["environment"]["COINFLOWER_CLIENTS"] == str(OWN_CLIENTS)
    assert MORE["services"]["setup"]["environment"] == {"COINFLOWER_CLIENTS": "12"}


@pytest.mark.parametrize("clients", [-1, 3, 201])
def test_a_number_of_further_clients_that_makes_no_sense_is_refused(clients):
    with pytest.raises(ValueError, match=f"clients = {clients} must be from 4 to 200"):
        render(COMPOSE.read_text(), clients)


def test_further_clients_are_written_with_folders_for_their_secrets(tmp_path):
    shutil.copy(COMPOSE, tmp_path)
    command = [
        sys.executable,
        "-I",
        str(ROOT / "deploy" / "containers" / "compose_clients.py"),
        "5",
    ]
    done = subprocess.run([*command, "--folder", tmp_path], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    written = yaml.safe_load((tmp_path / "docker-compose.clients.yml").read_text())
    for name in ("client-4", "client-5"):
        assert name in written["services"]
        assert (tmp_path / "deploy" / "secrets" / name).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.parent.name)
def test_a_base_image_can_be_named_by_digest_and_is_recorded(file):
    lines = file.read_text().splitlines()
    start = lines.index("FROM ${BASE}")
    assert lines[start - 1].startswith("ARG BASE=")
    assert "ARG BASE" in lines[start:]
    assert "LABEL org.opencontainers.image.base.name=${BASE}" in lines[start:]
    default = lines[start - 1].removeprefix("ARG BASE=")
    builds = [service["build"] for service in SERVICES.values() if "build" in service]
    (stated,) = (
        build["args"]["BASE"]
        for build in builds
        if (ROOT / build["context"] / build.get("dockerfile", "Dockerfile")).samefile(file)
    )
    assert stated.endswith(f":-{default}}}")


def test_the_image_pins_every_dependency_and_no_tool():
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()[1:]
    pins = dict(line.split("==") for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"]:
        requirement = Requirement(text)
        version = pins.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name}: make lock"
        assert requirement.specifier.contains(version), text
    assert pins["torch"].endswith("+cpu")
    assert not {"hypothesis", "mypy", "pytest", "ray", "ruff"} & pins.keys()
