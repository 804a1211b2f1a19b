"""Queries over real processes: what clients' own records say, and what that costs them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.deploy.local.local_statistics import prepare_statistics, statistics_results
from coinflower.learning import Update
from coinflower.protocol.agreed import query_of, terms_of
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from coinflower.protocol.query import Query, QueryKind
from tests.support import tables
from tests.support.federations import plan

Make = Callable[..., Any]
_TESTED = 360  # digits in the public test set


@pytest.mark.parametrize("mode", [Mode.TRUSTED, Mode.MASKED])
def test_clients_records_say_what_the_public_test_set_says(federation: Make, mode: Mode) -> None:
    """Both measure the last model: fails falsely once in 10⁶, if records are alike."""
    run = federation(
        mode=mode,
        p=1.0,  # else nobody may be there to measure the last model
        q=0.5,
        rounds=10,
        evaluate_every=5,
        evaluation_epsilon=4.0,
        update=Update(learning_rate=1.0),
    )
    assert run.finish() is None
    results = run.results()
    evaluation, public = results["evaluation"], results["accuracy"]
    assert (evaluation["round"], evaluation["times"]) == (10, 2)
    figure = evaluation["metrics"]["accuracy"]
    chance = math.sqrt(0.25 / _TESTED)  # the test set is a sample, too
    # Which of three clients took part matters little: they have shuffled data.
    assert abs(figure["value"] - public) < 5 * math.hypot(figure["standard_error"], chance)
    assert 0 < figure["standard_error"] < 0.15
    assert evaluation["epsilon"] <= 4.0
    header = (run.cluster.folder / "metrics.csv").read_text().splitlines()[0]
    assert "private_accuracy,private_accuracy_standard_error" in header
    assert json.loads((run.cluster.folder / "results.json").read_text())["evaluation"] == evaluation
    for index, path in enumerate(run.cluster.policies):
        policy = load_policy(path)
        with Ledger.open(run.cluster.ledger(index), read_only=True) as ledger:
            tallies = {tally.experiment: tally for tally in ledger.tallies()}
            assert ledger.spent(1e-3) <= policy.budget.epsilon
        training = tallies.pop(run.cluster.terms.ledger_key)
        (measured,) = tallies.values()
        assert (training.charged, measured.charged) == (10, 2)
        terms = terms_of(measured)
        assert terms is not None
        assert terms.query is not None
        assert terms.query.kind == "evaluation"
        together = epsilon_after([(training.terms, 10), (measured.terms, 2)], 1e-3)
        assert together == pytest.approx(policy.budget.epsilon, rel=1e-6)


def test_statistics_of_tables_are_those_of_all_rows_up_to_their_error(
    federation: Make, tmp_path: Path
) -> None:
    """Fails falsely less than once in 10⁵: four figures, each within five standard errors."""
    for ward in range(3):
        rows = tables.ward_rows(400, seed=ward)
        tables.write_ward(tmp_path / "data" / f"ward-{ward}.csv", rows)
    tables.write_ward(tmp_path / "data" / "test.csv", tables.ward_rows(30, seed=9))
    tables.write_schema(tmp_path / "schema.toml")
    wanted = plan(
        clients=None,
        data=str(tmp_path / "data"),
        schema=tmp_path / "schema.toml",
        how="files",
        mode=Mode.COVERED,
        p=0.9,
        q=0.8,
        sigma=None,
        epsilon=2.0,
        rounds=3,
    )
    query = Query(kind=QueryKind.STATISTICS, means=("age",), histograms=("sex", "age"))
    run = federation(prepare_statistics(wanted, query, tmp_path / "run"))
    assert run.finish() is None
    found = statistics_results(run.cluster)
    assert found["epsilon"] <= 2.0
    assert found["rounds"] == 3
    read = [row.split(",") for ward in range(3) for row in tables.ward_rows(400, seed=ward)]
    ages = [int(row[1]) for row in read]
    women = sum(row[2] == "f" for row in read)
    mean = found["columns"]["age"]["mean"]
    assert abs(mean["value"] - sum(ages) / 1200) < 5 * mean["standard_error"]
    counts = found["columns"]["sex"]["counts"]
    # Which of three clients took part moves counts, but not means: a round may lack a third.
    share = counts["f"]["value"] / (counts["f"]["value"] + counts["m"]["value"])
    assert share == pytest.approx(women / 1200, abs=0.1)
    middle = found["columns"]["age"]["histogram"]["quantiles"]["0.5"]
    assert middle["low"] - 10 < sorted(ages)[600] < middle["high"] + 10
    for index in range(3):
        with Ledger.open(run.cluster.ledger(index), read_only=True) as ledger:
            (tally,) = ledger.tallies()
        assert tally.charged == 3
        assert query_of(tally) is QueryKind.STATISTICS
