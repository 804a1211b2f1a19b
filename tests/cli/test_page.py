"""The commands that open the owner's page, and the one that gives a stale reservation back."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from coinflower.accounting.analyses.baselines import WeakClientSampling
from coinflower.accounting.composition.compose import epsilon_after
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round
from coinflower.cli.machines import client as cli_client
from coinflower.cli.main import app
from tests.support.builders import policy_text
from tests.support.waiting import PATIENCE

PROGRAM = Path(sys.executable).parent / "coinflower"
TERMS = WeakClientSampling(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
POLICY = policy_text(modes=["quiet"], budget={"epsilon": 30.0, "delta": 1e-3})


@pytest.fixture
def path(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", "ward 7") as ledger:
        for experiment in ("trial#aa", "trial#ab", "other"):
            ledger.reserve(experiment, TERMS, 10, Budget(epsilon=50.0, delta=1e-5))
        ledger.flip_all("trial#aa", range(1, 5))
    (tmp_path / "policy.toml").write_text(POLICY)
    return tmp_path / "ledger.db"


def call(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def reserved(path):
    with Ledger.open(path, read_only=True) as ledger:
        return {tally.experiment: tally.reserved_rounds for tally in ledger.tallies()}


@pytest.mark.parametrize("name", ["trial#aa", "trial#a", "o", "x"])
def test_release_gives_back_one_experiment_that_the_name_tells_apart(path, name):
    before = reserved(path)
    if name in ("trial#a", "x"):
        with pytest.raises(ValueError, match=r"experiment begins with .*trial#aa"):
            call("ledger", "release", path, name)
        assert reserved(path) == before
    else:
        told = json.loads(call("ledger", "release", path, name, "--json").stdout)
        whole, left = {"o": ("other", 0), "trial#aa": ("trial#aa", 4)}[name]
        assert told == {"experiment": whole, "released_rounds": 10 - left}
        assert reserved(path) == {**before, whole: left}


def test_release_says_what_stays(path):
    assert (
        "6 rounds given back, 4 stay charged" in call("ledger", "release", path, "trial#aa").stdout
    )


def test_the_ledgers_page_is_served_until_it_is_told_to_stop(path):
    process = subprocess.Popen(
        [PROGRAM, "ledger", "page", path, "--policy", path.parent / "policy.toml"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        (link,) = re.findall(r"is in (\S+),", process.stdout.readline())
        url = Path(link).read_text().strip()
        with httpx.Client(timeout=60, follow_redirects=True) as browser:
            assert browser.get(url.partition("?")[0]).status_code == 401
            text = browser.get(url).text
    finally:
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=PATIENCE)
    assert (process.returncode, told) == (0, "")
    assert f'value="{epsilon_after([(TERMS, 4)], 1e-3)!r}"' in text
    assert "Read-only" in text
    assert "Policy in force" in text


def test_a_page_of_no_ledger_is_refused(tmp_path):
    with pytest.raises(LedgerError, match="There is no ledger at"):
        call("ledger", "page", tmp_path / "gone.db")


def test_a_page_is_not_shown_at_another_delta_than_stated(path):
    with pytest.raises(ValueError, match=r"budget is at delta = 0\.001; leave out --delta"):
        call("ledger", "page", path, "--policy", path.parent / "policy.toml", "--delta", "1e-9")


@pytest.mark.parametrize("address", ["8600", "localhost:port"])
def test_a_client_with_an_unusable_page_does_not_start(path, address, monkeypatch):
    monkeypatch.setattr(cli_client, "start_logging", lambda _: None)
    command = ("client", path.parent / "policy.toml", "--superlink", "127.0.0.1:1", "--insecure")
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        call(*command, "--page", address)
