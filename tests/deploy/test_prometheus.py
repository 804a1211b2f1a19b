"""Prometheus metrics: from the run's own files, and nothing of what clients spend."""

import re
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.flower.loopback import LOOPBACK, free_port
from coinflower.deploy.machines.prometheus import metrics_server, render_metrics
from coinflower.deploy.machines.queue import ExperimentQueue
from coinflower.server.journal import Journal
from tests.support.federations import REPORT


@pytest.fixture
def settings(prepared, tmp_path):
    terms = replace(prepared.terms, experiment="trial")
    made = replace(prepared, state=tmp_path / "state", terms=terms)
    ExperimentQueue(tmp_path).enter(made)
    return made


def figures(text, experiment="trial"):
    found = re.findall(rf'^(\w+)\{{experiment="{experiment}"\}} (\S+)$', text, re.M)
    return {name: float(value) for name, value in found}


@pytest.mark.usefixtures("settings")
def test_a_run_that_has_not_begun_has_metrics_too(tmp_path):
    found = figures(render_metrics(tmp_path))
    assert found["coinflower_rounds_total"] == 0
    assert found["coinflower_planned_rounds"] == 4
    assert "coinflower_accuracy" not in found


def test_rounds_are_summed_and_the_last_is_shown(settings, tmp_path):
    journal = Journal(settings.state, insecure=False)
    journal.round(REPORT, {"accuracy": 0.5})
    journal.round(replace(REPORT, round=2, participants=3, answered=3, dropped=0), None)
    found = figures(render_metrics(tmp_path))
    expected = {
        "rounds_total": 2,
        "last_round": 2,
        "participations_total": 5,
        "participants": 3,
        "available_clients": 3,
        "answers_total": 4,
        "answered": 3,
        "dropped_total": 1,
        "dropped": 0,
        "received_bytes_total": 2000,
        "round_seconds": 0.5,
        "rounds_seconds_total": 1.0,
        "accuracy": 0.5,
    }
    assert {name: found[f"coinflower_{name}"] for name in expected} == expected


def test_experiments_are_told_apart_by_a_label(settings, tmp_path):
    other = replace(settings.terms, experiment="other")
    ExperimentQueue(tmp_path).enter(replace(settings, state=tmp_path / "other", terms=other))
    Journal(settings.state, insecure=False).round(REPORT, {"accuracy": 0.5})
    text = render_metrics(tmp_path)
    assert figures(text)["coinflower_rounds_total"] == 1
    assert figures(text, "other")["coinflower_rounds_total"] == 0
    assert text.count("# TYPE coinflower_rounds_total") == 1
    assert "coinflower_nodes_online 0\n" in text


def test_every_metric_of_the_task_has_its_name_as_a_label(settings, tmp_path):
    odd = 'lift at 10 % ("top")\n'
    metrics = {"auc": 0.75, "average_precision": None, odd: 2.0}
    Journal(settings.state, insecure=False).round(REPORT, metrics)
    lines = render_metrics(tmp_path).splitlines()
    assert [line for line in lines if line.startswith("coinflower_metric{")] == [
        'coinflower_metric{experiment="trial",name="auc"} 0.75',
        'coinflower_metric{experiment="trial",name="lift at 10 % (\\"top\\")\\n"} 2.0',
    ]
    assert "# TYPE coinflower_metric gauge" in lines


def test_what_clients_records_said_has_names_of_its_own(settings, tmp_path):
    said = {
        "accuracy": {"value": 0.71, "standard_error": 0.02},
        "loss": {"value": None, "standard_error": None},
    }
    report = replace(REPORT, private_metrics=said)
    Journal(settings.state, insecure=False).round(report, {"accuracy": 0.5})
    lines = render_metrics(tmp_path).splitlines()
    assert [line for line in lines if line.startswith("coinflower_private")] == [
        'coinflower_private_metric{experiment="trial",name="accuracy"} 0.71',
        'coinflower_private_metric_standard_error{experiment="trial",name="accuracy"} 0.02',
    ]
    assert 'coinflower_metric{experiment="trial",name="accuracy"} 0.5' in lines


def test_every_metric_has_help_and_type_and_none_is_about_epsilon(settings, tmp_path):
    Journal(settings.state, insecure=False).round(REPORT, {"accuracy": 0.5})
    text = render_metrics(tmp_path)
    for name in figures(text):
        assert f"# HELP {name} " in text
        assert re.search(rf"^# TYPE {name} (counter|gauge)$", text, re.M)
    assert "epsilon" not in text
    assert "ε" not in text


@pytest.mark.usefixtures("settings")
def test_they_are_served_on_one_path_only(tmp_path):
    port = free_port(LOOPBACK)
    with metrics_server(tmp_path, host=LOOPBACK, port=port):
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b'coinflower_rounds_total{experiment="trial"} 0' in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/etc/passwd", timeout=60)
        busy = metrics_server(tmp_path, host=LOOPBACK, port=port)
        with pytest.raises(DeploymentError, match="Metrics cannot be served on"), busy:
            pass


@pytest.mark.usefixtures("settings")
def test_a_page_of_another_site_cannot_read_them_under_its_own_name(tmp_path):
    port = free_port(LOOPBACK)
    with metrics_server(tmp_path, host=LOOPBACK, port=port):
        for host in (f"localhost:{port}", f"[::1]:{port}", LOOPBACK):
            assert b"coinflower" in asked(port, Host=host).read()
        for headers in ({"Host": f"evil.example:{port}"}, {"Origin": "http://evil.example"}):
            with pytest.raises(urllib.error.HTTPError) as caught:
                asked(port, **headers)
            assert caught.value.code in (403, 421)
            assert b"coinflower_" not in caught.value.read()


def test_damaged_figures_are_told_as_such(settings, tmp_path):
    Journal(settings.state, insecure=False).round(REPORT, None)
    path = settings.state / "metrics.jsonl"
    path.write_text(path.read_text().replace("{", "[", 1))
    port = free_port(LOOPBACK)
    with metrics_server(tmp_path, host=LOOPBACK, port=port):
        with pytest.raises(urllib.error.HTTPError, match="500") as caught:
            asked(port)
        assert f"{path} is damaged" in caught.value.read().decode()


@pytest.mark.usefixtures("settings")
def test_on_a_network_of_containers_they_have_any_name(tmp_path):
    port = free_port("0.0.0.0")
    with metrics_server(tmp_path, host="0.0.0.0", port=port):
        assert b"coinflower" in asked(port, Host=f"server:{port}").read()


def asked(port, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    return urllib.request.urlopen(request, timeout=60)
