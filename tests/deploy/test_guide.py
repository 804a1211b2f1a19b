"""The guide and the units speak of commands, options and files that exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.deploy.gateway import process as gateway_process
from coinflower.protocol.policy import load_policy
from coinflower.server.settings import load_settings
from tests.support.documents import blocks, parsed

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def commands():
    for mark, text in blocks().items():
        for line in text.splitlines():
            if line.startswith("coinflower "):
                yield pytest.param(line.removeprefix("coinflower "), id=f"{mark}: {line[:40]}")


def started(unit):
    text = unit.read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    for name, value in re.findall(r"^Environment=(\w+)=(\S+)$", text, re.M):
        line = line.replace(f"${{{name}}}", value)
    return line.partition("/bin/coinflower ")[2]


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_guide_is_understood(line):
    assert parsed(line)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_every_unit_starts_something_that_is_understood(unit):
    assert parsed(started(unit))
    assert "--log-format json" in started(unit)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_every_unit_tells_its_health_at_a_port_that_the_guide_names(unit):
    port = parsed(started(unit))["health_port"]
    assert f"{port}/tcp" in (ROOT / "deploy" / "README.md").read_text()


def test_units_wait_longer_than_programs_drain():
    for unit in UNITS:
        (seconds,) = map(int, re.findall(r"^TimeoutStopSec=(\d+)$", unit.read_text(), re.M))
        assert seconds > 1.5 * parsed(started(unit))["drain_seconds"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_the_units(unit, tmp_path):
    text = re.sub(r"^ExecStart=/\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.M)
    copy = tmp_path / unit.name.replace("@", "@ward-7")
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stderr.splitlines() if unit.stem.rstrip("@") in line]
    assert not told, told


def settings_of(unit, name):
    """Return what a unit says for one instance, by key; the last line of a key counts."""
    text = unit.read_text().replace("%i", name)
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.M))


def test_no_two_units_of_a_machine_share_a_user_or_a_folder():
    *single, template = sorted(UNITS, key=lambda unit: ("@" in unit.name, unit.name))
    assert [unit.name for unit in (*single, template)] == [
        "coinflower-notary.service",
        "coinflower-server.service",
        "coinflower-client@.service",
    ]
    units = [settings_of(unit, "") for unit in single]
    units += [settings_of(template, name) for name in ("a", "b")]
    for key in ("User", "Group", "StateDirectory", "WorkingDirectory"):
        assert len({unit[key] for unit in units}) == len(units), key
    folders = [Path("/var/lib") / unit["StateDirectory"] for unit in units]
    for folder, unit in zip(folders, units, strict=True):
        assert unit["StateDirectoryMode"] == "0700"
        assert str(folder) == unit["WorkingDirectory"]
        # A folder below another's could not be reached, since that one is closed.
        assert not any(other in folder.parents for other in folders)


def test_every_unit_is_hardened_alike():
    hardened = [
        {
            key: value
            for key, value in settings_of(unit, "a").items()
            if key.startswith(("Protect", "Private", "Restrict", "SystemCall", "NoNew", "Cap"))
            or key in ("UMask", "LockPersonality", "StateDirectoryMode")
        }
        for unit in UNITS
    ]
    assert hardened == [hardened[0]] * len(UNITS)
    assert len(hardened[0]) > 20


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_no_unit_dumps_cores(unit):
    assert settings_of(unit, "a")["LimitCORE"] == "0"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_guide_makes_the_users_and_folders_of_the_units(unit):
    text = (ROOT / "deploy" / "README.md").read_text()
    names = {
        "coinflower-server.service": "server",
        "coinflower-client@.service": "ward-7",
        "coinflower-notary.service": "notary",
    }
    said = settings_of(unit, name := names[unit.name])
    assert said["User"] == f"coinflower-{name}"
    assert f"for name in {' '.join(names.values())};" in text
    assert "--shell /usr/sbin/nologin coinflower-$name" in text
    assert "--mode=0700 /etc/coinflower/$name /var/lib/coinflower/$name" in text
    for path in re.findall(r"/(?:etc|var/lib)/coinflower/\S+", said["ExecStart"]):
        assert path.split("/")[3 if path.startswith("/etc") else 4] == name


def test_the_files_of_the_guide_can_be_used_together_in_mode_masked(tmp_path):
    said = blocks()
    key = re.search(r'notaries = \["([0-9a-f]{64})"\]', said["masked terms"])[1]
    (tmp_path / "notary.pub").write_text(f"coinflower-notary {key}\n")
    for name, line, mark in (
        ("settings.toml", 'mode = "trusted"\n', "masked terms"),
        ("policy.toml", 'modes = ["trusted"]\n', "masked policy"),
    ):
        assert line in said[name]
        (tmp_path / name).write_text(said[name].replace(line, said[mark]))
    terms = load_settings(tmp_path / "settings.toml").terms
    policy = load_policy(tmp_path / "policy.toml")
    policy.require(terms)
    assert policy.least_threshold == terms.threshold
    cost = terms.round_cost(policy.declared_size)
    assert epsilon_after([(cost, terms.rounds)], policy.budget.delta) <= policy.budget.epsilon


def test_the_files_of_the_guide_can_be_used_together(tmp_path):
    for name in ("settings.toml", "policy.toml"):
        (tmp_path / name).write_text(blocks()[name])
    settings, policy = (
        load_settings(tmp_path / "settings.toml"),
        load_policy(tmp_path / "policy.toml"),
    )
    policy.require(settings.terms)
    assert policy.data_set == "ward-7"
    cost = settings.terms.round_cost(policy.declared_size)
    spent = epsilon_after([(cost, settings.terms.rounds)], policy.budget.delta)
    assert spent <= policy.budget.epsilon


def test_the_guide_names_the_ports_that_the_program_takes():
    serving = parsed(blocks()["server run"].strip().removeprefix("coinflower "))
    default = parsed("server run settings.toml")
    text = (ROOT / "deploy" / "README.md").read_text()
    assert gateway_process.listen_address(serving["listen"])[1] == 8443
    assert serving["listen"] == default["listen"]
    for port in (8443, default["port"], serving["health_port"], serving["metrics_port"]):
        assert f"{port}/tcp" in text
    assert "--dport 8443" in blocks()["server firewall"]
