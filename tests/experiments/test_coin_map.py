"""The map of when a coin pays: what is compared, and the copy in the documents."""

import csv
import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coinflower.accounting.analyses.baselines import CentralShuffling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.composition.calibration import least_sigma
from coinflower.cli.main import app
from coinflower.experiments.studies.coin_map import CoinMap

PUBLISHED = Path(__file__).parents[2] / "docs" / "coin-map" / "coin-map.csv"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    out = tmp_path_factory.mktemp("map")
    words = f"coin-map --out {out} --points 3 --rounds 20 --caps inf,1 --json".split()
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout)


def test_with_everybody_there_is_no_price_and_a_coin_never_lowers_it(drawn):
    for point in drawn["points"]:
        assert point["price"] >= 0.999
        if point["p"] == 1:
            assert point["price"] == pytest.approx(1, abs=2e-3)


def test_batch_and_data_are_the_same_everywhere(drawn):
    for point in drawn["points"]:
        assert point["p"] * point["q"] == pytest.approx(0.01)
        assert point["d"] * point["q"] == pytest.approx(point["samples"], abs=point["q"] / 2 + 1e-9)


def test_a_cap_lowers_the_price_where_participants_send_much(drawn):
    price = {(e["cap"], e["p"], e["samples"]): e["price"] for e in drawn["points"]}
    assert price[1.0, 0.01, 100.0] < price[None, 0.01, 100.0] / 3


def test_secrecy_buys_nothing_where_sums_show_who_takes_part(drawn):
    pays = {(e["cap"], e["p"], e["samples"]): e["secret_coin_pays"] for e in drawn["points"]}
    assert pays[None, 0.1, 100.0] is False
    assert pays[1.0, 0.1, 100.0] is True


def test_picture_and_table_are_written(drawn):
    picture, table = map(Path, drawn["files"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    with table.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(drawn["points"])


@pytest.mark.parametrize("option", ["--rate 1", "--rounds x", "--points 1", "--caps 0.5"])
def test_what_cannot_be_mapped_is_refused(tmp_path, option):
    words = f"coin-map --out {tmp_path / 'map'} {option}".split()
    with pytest.raises(ValueError, match=option.split()[0].removeprefix("--").rstrip("s")):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "map").exists()


def test_the_published_map_is_that_of_the_program():
    with PUBLISHED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    asked = CoinMap()
    target = {"epsilon": asked.epsilon, "delta": asked.delta}
    assert {int(row["rounds"]) for row in rows} == set(asked.rounds)
    assert {float(row["cap"]) for row in rows} == set(asked.caps)
    for row in rows[:: len(rows) // 7]:
        terms = {"p": float(row["p"]), "q": float(row["q"]), "rounds": int(row["rounds"])}
        sigma = least_sigma(
            Certified, **terms, d=int(row["d"]), cap=float(row["cap"] or math.inf), **target
        )
        ideal = least_sigma(CentralShuffling, **terms, d=0, **target)
        assert sigma / ideal == pytest.approx(float(row["price"]), rel=3e-3)
