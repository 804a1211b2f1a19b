"""A ledger that was charged by the first certified bound: it keeps its price and takes more."""

import json
import shutil
from pathlib import Path

import pytest

from coinflower.accounting.analyses.baselines import WeakClientSampling
from coinflower.accounting.analyses.certified import Certified, CertifiedBySample
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.ledger.entries import Budget, terms_from_json, terms_to_json
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round

MADE = Path(__file__).parent / "format-2" / "certified.db"
# What the version that wrote the file said of its ten rounds of 'trial' and five of 'seen'.
SPENT, RESERVED = 1.0575693498954102, 1.29959944847598
TRIAL = Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5)
PLENTY = Budget(epsilon=1e6, delta=1e-5)


@pytest.fixture
def ledger(tmp_path):
    path = shutil.copy(MADE, tmp_path / "ledger.db")
    with Ledger.open(path) as opened:
        yield opened


def test_it_keeps_its_epsilon(ledger):
    assert ledger.spent(1e-5) == pytest.approx(SPENT, rel=1e-4)
    assert ledger.reserved_epsilon(1e-5) == pytest.approx(RESERVED, rel=1e-4)
    assert ledger.spent(1e-5) > epsilon_after(
        [(Certified(TRIAL), 10), (WeakClientSampling(Round(0.5, 0.1, 20, 2.0)), 5)], 1e-5
    )


def test_an_experiment_goes_on_at_the_price_it_began_with(ledger):
    ledger.flip_all("trial", range(1, 16))
    ledger.reserve("trial", Certified(TRIAL), 25, PLENTY)
    (tally,) = (each for each in ledger.tallies() if each.experiment == "trial")
    assert tally.terms == CertifiedBySample(TRIAL)
    assert (tally.reserved_rounds, tally.charged) == (25, 15)
    assert {
        json.loads(entry.terms)["scheme"]
        for entry in ledger.history()
        if entry.experiment == "trial"
    } == {"certified"}
    ledger.verify()


def test_its_older_price_counts_against_the_budget(ledger):
    rounds = [(CertifiedBySample(TRIAL), 40), (WeakClientSampling(Round(0.5, 0.1, 20, 2.0)), 5)]
    too_little = Budget(epsilon=epsilon_after(rounds, 1e-5) * 0.999, delta=1e-5)
    with pytest.raises(LedgerError, match="do not fit"):
        ledger.reserve("trial", Certified(TRIAL), 40, too_little)


def test_other_terms_are_still_refused(ledger):
    with pytest.raises(LedgerError, match="other terms"):
        ledger.reserve("trial", Certified(Round(0.5, 0.1, 21, 1.5)), 25, PLENTY)
    with pytest.raises(LedgerError, match="other terms"):
        ledger.reserve("trial", WeakClientSampling(TRIAL), 25, PLENTY)
    with pytest.raises(LedgerError, match="other terms"):
        ledger.reserve("trial", Certified(Round(0.5, 0.1, 20, 1.5, cap=2)), 25, PLENTY)


def test_a_new_experiment_is_charged_by_the_new_bound_under_its_own_name(ledger):
    ledger.reserve("new", Certified(TRIAL), 10, PLENTY)
    ledger.reserve("capped", Certified(Round(0.5, 0.1, 20, 1.5, cap=2)), 10, PLENTY)
    ledger.flip_all("new", range(1, 11))
    ledger.flip_all("capped", range(1, 11))
    told = {tally.experiment: json.loads(terms_to_json(tally.terms)) for tally in ledger.tallies()}
    assert told["new"]["scheme"] == told["capped"]["scheme"] == "one-crossing"
    assert "cap" not in told["new"]
    assert told["capped"]["cap"] == 2
    assert ledger.spent(1e-5) > SPENT
    ledger.verify()


def test_what_a_newer_program_charged_is_not_guessed():
    text = terms_to_json(Certified(TRIAL)).replace("one-crossing", "next-year")
    with pytest.raises(ValueError, match="'next-year' that this program does not know"):
        terms_from_json(text)
