"""The dashboard: it asks for metrics that exist, and lets nobody nearer to the server."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from coinflower.deploy.machines.prometheus import render_metrics
from coinflower.deploy.machines.queue import ExperimentQueue
from coinflower.server.journal import Journal
from tests.support.federations import REPORT

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "dashboard"
FILE = ROOT / "docker-compose.dashboard.yml"
BASE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PROJECT = yaml.safe_load(FILE.read_text())
SERVICES = PROJECT["services"]
DASHBOARD = json.loads((FOLDER / "coinflower.json").read_text())
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def load(name):
    return yaml.safe_load((FOLDER / name).read_text())


def mounted(service):
    """Return the files of this repository that a service gets, by their place in it."""
    mounts = (mount.split(":") for mount in SERVICES[service]["volumes"])
    return {Path(target): ROOT / source for source, target, *_ in mounts if source.startswith(".")}


@pytest.fixture
def metrics(prepared, tmp_path):
    """The names of all metrics of a server."""
    settings = replace(prepared, state=tmp_path / "state")
    ExperimentQueue(tmp_path).enter(settings)
    Journal(settings.state, insecure=False).round(REPORT, {"accuracy": 0.5})
    text = render_metrics(tmp_path)
    return set(re.findall(r"^# TYPE (\w+) ", text, re.M))


def test_every_metric_that_the_dashboard_asks_for_exists(metrics):
    asked = set(re.findall(r"coinflower_\w+", " ".join(QUERIES)))
    assert len(asked) > 10
    assert asked <= metrics


def test_queries_name_nothing_else():
    known = r"coinflower_\w+|up\{job=\"coinflower\"\}|rate|increase|10m|60|1|[\s()\[\]/*-]"
    for query in QUERIES:
        assert re.fullmatch(f"(?:{known})+", query), query


def test_experiments_are_told_apart_wherever_a_metric_is_about_one():
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            about_all = "nodes_online" in target["expr"] or target["expr"].startswith("up{")
            assert ("{{experiment}}" in target["legendFormat"]) == (not about_all)


def test_every_panel_asks_the_datasource_that_is_provided():
    (source,) = load("datasource.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    for panel in DASHBOARD["panels"]:
        asked = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {one["uid"] for one in asked} == {source["uid"]}


def test_panels_do_not_cover_each_other():
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_prometheus_asks_the_port_on_which_the_server_has_its_metrics():
    (job,) = load("prometheus.yml")["scrape_configs"]
    assert job["job_name"] == "coinflower"
    assert job["static_configs"] == [{"targets": ["server:9101"]}]
    assert "--metrics-port=9101" in BASE["services"]["server"]["command"]
    assert "--metrics-host=0.0.0.0" in BASE["services"]["server"]["command"]


def test_the_files_are_where_the_programs_look_for_them():
    prometheus, grafana = mounted("prometheus"), mounted("grafana")
    (config,) = (
        word.partition("=")[2]
        for word in SERVICES["prometheus"]["command"]
        if word.startswith("--config.file=")
    )
    assert prometheus == {Path(config): FOLDER / "prometheus.yml"}
    (provider,) = load("provider.yml")["providers"]
    shown = Path(provider["options"]["path"]) / "coinflower.json"
    assert grafana[shown] == FOLDER / "coinflower.json"
    assert set(grafana.values()) == {
        FOLDER / name for name in ("coinflower.json", "datasource.yml", "provider.yml")
    }


def test_only_prometheus_comes_nearer_to_the_server_and_grafana_is_on_loopback_only():
    """Whoever reaches the server reaches its SuperLink, whose Control API has no password."""
    assert set(SERVICES) == {"prometheus", "grafana"}
    assert set(SERVICES["prometheus"]["networks"]) == {"inside", "watching"}
    assert set(SERVICES["grafana"]["networks"]) == {"watching", "public"}
    assert PROJECT["networks"] == {"watching": {"internal": True}}
    assert "ports" not in SERVICES["prometheus"]
    (port,) = SERVICES["grafana"]["ports"]
    assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_may_do_no_more_than_it_must(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["ulimits"] == {"core": 0}
    assert not service["user"].startswith("0")
    assert 0 < service["pids_limit"] <= 512
    assert "healthcheck" in service
    assert all(mount.endswith(":ro") for mount in service["volumes"] if mount.startswith("."))


def test_the_compose_file_keeps_to_the_schema():
    command = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_docker_compose_understands_the_file_and_wants_a_password(docker_compose):
    command = [docker_compose, "--file", ROOT / "docker-compose.yml", "--file", FILE, "config"]
    environment = {key: value for key, value in os.environ.items() if "GRAFANA" not in key}
    without = subprocess.run(
        [*command, "-q"], env=environment, capture_output=True, text=True, check=False
    )
    assert without.returncode != 0
    assert "choose a password for Grafana" in without.stderr
    chosen = {**environment, "COINFLOWER_GRAFANA_PASSWORD": "a long one"}
    done = subprocess.run(command, env=chosen, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    merged = yaml.safe_load(done.stdout)
    assert merged["name"] == "coinflower"
    assert set(merged["services"]) == set(BASE["services"]) | set(SERVICES)
