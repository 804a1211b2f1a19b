"""The report of a run: its figures are the ledgers' and the metrics', and it needs nothing else."""

import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from coinflower.accounting.charts import Axis, Line, binned, line_chart
from coinflower.accounting.composition.tightness import realised_epsilon_after
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.cli import main as cli
from coinflower.deploy.local.cluster import prepare
from coinflower.experiments.simulator.simulation import read_state
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from coinflower.protocol.unit import Unit
from coinflower.report.run import report_local_run, report_server_run
from coinflower.server.journal import read_metrics
from coinflower.server.settings import load_settings
from tests.report.pages import read_page
from tests.support.federations import plan, play

ROUNDS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a cluster of three clients that has played, and its report."""
    cluster = prepare(plan(rounds=ROUNDS), tmp_path_factory.mktemp("report") / "run")
    play(cluster)
    return cluster, report_local_run(cluster)


def short_run(folder, *, seeded=(), **changes):
    """Return the page of a run of one round, which takes little time to account for."""
    cluster = prepare(plan(rounds=1, **changes), folder / "run")
    coins = play(cluster, seeded=seeded)
    return read_page(report_local_run(cluster)), coins


def test_each_clients_figures_are_its_ledgers(run):
    cluster, path = run
    lines = read_page(path).one(id="clients").find("li")
    assert len(lines) == 3
    for index, line in enumerate(lines):
        with Ledger.open(cluster.ledger(index), read_only=True) as ledger:
            (tally,) = ledger.tallies()
            spent = ledger.spent(cluster.delta)
        budget = load_policy(cluster.policies[index]).budget.epsilon
        assert f"client-{index}" in line.text
        told, allowed = re.search(r"ε ([\d.]+) of ([\d.]+)", line.text).groups()
        assert spent <= float(told) <= spent * 1.001
        assert float(allowed) == pytest.approx(budget, rel=1e-3)
        assert f"{tally.charged} rounds charged, {tally.took_part} taken part" in line.text


def test_accuracy_and_counts_are_the_servers(run):
    cluster, path = run
    page = read_page(path)
    rows = read_metrics(cluster.server)
    dots = [dot.text for dot in page.one("figure", id="accuracy").find("circle")]
    assert dots == [
        f"round {row['round']}: {row['accuracy']:.0%}".replace("%", " %") for row in rows
    ]
    mean = sum(row["participants"] for row in rows) / len(rows)
    assert f"Mean {mean:.1f}." in page.one("figure", id="participants").text
    expected = sum(row["expected_batch"] for row in rows) / len(rows)
    assert f"Mean {expected:.1f}." in page.one("figure", id="batch").text
    assert f"{rows[-1]['accuracy']:.1%}" in page.one(class_="tiles").text


def test_the_guarantee_says_who_what_and_how_tight(run):
    cluster, path = run
    with Ledger.open(cluster.ledger(0), read_only=True) as ledger:
        spent = ledger.spent(cluster.delta)
        cost = ledger.tallies()[0].terms
    told = read_page(path).one(id="guarantee").text
    assert f"ε ≤ {rounded_up(spent)} at δ = {cluster.delta:g}" in told
    least = realised_epsilon_after(cost.round, ROUNDS, cluster.delta)
    assert f"ε ≥ {rounded_down(least)}" in told
    for words in ("one record", "not the server", "scheme certified", "k records together"):
        assert words in told


def test_persons_are_named_where_they_are_protected(tmp_path):
    inputs = np.random.default_rng(0).random((90, 8, 8)).astype(np.float32)
    persons = np.arange(90) // 2
    np.savez(tmp_path / "x.npz", x=inputs, y=np.arange(90) % 10, persons=persons)
    page, _ = short_run(
        tmp_path, data=str(tmp_path / "x.npz"), model="linear", unit=Unit.PERSON, evaluate_every=1
    )
    told = page.one(id="guarantee").text
    assert "one person, with all of that person's records in this data set: the promise" in told
    assert "every person of every client" in told
    assert "A person whose records are at several clients" in told
    assert "k records together" not in told
    assert "(12 persons)" in page.one(id="clients").text
    assert "3 with 12 persons each" in page.one(id="terms").text
    assert "one person, with all of that person's records" in page.one(id="terms").text
    assert "persons actually drawn never leaves" in page.one("figure", id="batch").text


def test_the_page_is_whole_and_loads_nothing(run):
    _, path = run
    text = path.read_text()
    page = read_page(path)
    assert not re.search(r"https?:|//", text.replace("<!--", ""))
    assert page.find("script") == []
    assert page.find("img") == []
    for element in page.walk():
        assert not {"src", "onload", "onclick"} & element.attributes.keys()
        assert element.attributes.get("href", "data:,") == "data:,"


def test_curves_stay_inside_their_drawing(run):
    _, path = run
    curves = read_page(path).find("polyline")
    assert len(curves) >= 6
    for curve in curves:
        for pair in curve.attributes["points"].split():
            across, down = map(float, pair.split(","))
            assert 0 <= across <= 460
            assert 0 <= down <= 260


def test_nothing_is_stamped_when_nothing_was_seeded(run):
    _, path = run
    assert read_page(path).find(class_="stamp") == []


def test_one_seeded_client_stamps_the_whole_report(tmp_path):
    page, _ = short_run(tmp_path, seeded={1}, mode=Mode.QUIET)
    assert "INSECURE" in page.one(class_="stamp").text
    assert "no: something was seeded" in page.one(id="guarantee").text


def test_a_run_without_privacy_is_stamped_and_lists_no_epsilon(tmp_path):
    page, _ = short_run(tmp_path, mode=Mode.NONE, sigma=None)
    assert "NO PRIVACY" in page.one(class_="stamp").text
    assert page.find(id="clients") == []
    assert page.find("figure", id="epsilon") == []
    assert "nobody" in page.one(id="guarantee").text


def test_in_mode_untrusted_participants_come_from_the_ledgers(tmp_path):
    page, coins = short_run(tmp_path, mode=Mode.UNTRUSTED, clients=6)
    joined = sum(coin for flipped in coins.values() for coin in flipped)
    assert f"Mean {joined:.1f}." in page.one("figure", id="participants").text
    assert "the server included" in page.one(id="guarantee").text


def test_many_clients_are_all_listed_and_few_are_drawn(tmp_path):
    page, _ = short_run(tmp_path, clients=45, mode=Mode.QUIET)
    assert len(page.one(id="clients").find("li")) == 45
    drawn = page.one("figure", id="epsilon")
    assert len(drawn.find("polyline")) == 12 + 1
    assert "12 of 45 clients are drawn" in drawn.text


def test_the_servers_report_knows_nothing_of_clients_epsilon(run):
    cluster, _ = run
    settings = load_settings(cluster.settings)
    page = read_page(report_server_run(settings))
    assert page.find(id="clients") == []
    assert page.find("figure", id="epsilon") == []
    assert "own ledger knows" in page.one(id="guarantee").text
    assert "ε ≤" not in page.text
    assert page.find("figure", id="participants")


def test_a_cap_stands_beside_the_clip_norm_and_in_what_to_ask(run, tmp_path):
    assert "cap on" not in read_page(run[1]).one(id="terms").text
    cluster = prepare(plan(rounds=1, clip_norm=0.5, cap=1.5), tmp_path / "run")
    play(cluster)
    page = read_page(report_local_run(cluster))
    told = page.one(id="terms").text
    assert "cap on a client's whole sum 1.5 clip norms, that is 0.75" in told
    told = read_page(report_server_run(load_settings(cluster.settings))).one(id="guarantee").text
    assert "--cap 1.5 --sigma 1.0" in told


def test_mode_masked_is_told_with_its_assumption(tmp_path):
    cluster = prepare(plan(rounds=2, clients=5, mode=Mode.MASKED), tmp_path / "run")
    play(cluster)
    page = read_page(report_local_run(cluster))
    assert "of at least 4 clients, up to 1 of which may tell" in page.one(id="terms").text
    assert cluster.terms.notaries[0] in page.one(id="terms").text
    assert "conspires neither with every notary" in page.one(id="guarantee").text
    assert "Sums opened by the notary" in page.one(class_="tiles").text


def test_a_seeded_server_stamps_its_report(run):
    cluster, _ = run
    settings = replace(load_settings(cluster.settings), insecure_seed=3)
    assert "INSECURE" in read_page(report_server_run(settings)).one(class_="stamp").text


def test_a_simulation_without_a_folder_gets_one_and_a_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = "--data digits --model digits --iterations 3 --evaluate-every 2 --sigma 2 --seed 1"
    options += " --cap 1.5"
    command = ["coinflower", "simulate", "many-small", *options.split(), "--json"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    results = json.loads(capsys.readouterr().out)
    (path,) = tmp_path.glob("runs/simulation-*/report.html")
    assert results["report"] == str(path.relative_to(tmp_path))
    page = read_page(path)
    curve = read_state(path.parent).curve
    assert len(curve.draws) == 3
    for name, place in (("participants", 0), ("batch", 1)):
        mean = sum(draw[place] for draw in curve.draws) / 3
        assert f"Mean {mean:.1f}." in page.one("figure", id=name).text
    assert rounded_up(results["epsilon"]) in page.one(id="guarantee").text
    assert "1.5 clip norms" in page.text
    assert results["cap"] == 1.5
    assert "INSECURE" in page.one(class_="stamp").text
    assert len(page.one("figure", id="accuracy").find("circle")) == len(curve.accuracy)


def test_names_are_escaped_in_charts():
    line = Line(name="<script>&", points=[(0, 0), (1, 2)])
    drawn = line_chart("a < b", [line], x=Axis(label="x"), y=Axis(label='"y"'))
    assert "<script>" not in drawn
    assert "&lt;script&gt;&amp;" in drawn
    assert 'aria-label="a &lt; b"' in drawn


def test_long_series_are_drawn_as_means_within_their_extremes():
    values = [(float(at), float(at % 10)) for at in range(1000)]
    means, band, size = binned(values)
    assert len(means) <= 160
    assert size == 7
    assert sum(value for _, value in means) / len(means) == pytest.approx(4.5, abs=0.05)
    for (_, mean), low, high in zip(means, band.low, band.high, strict=True):
        assert low <= mean <= high
    assert binned(values[:100]) == (values[:100], None, 1)
