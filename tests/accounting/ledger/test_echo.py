"""Sealed notes of a ledger's last entry: they find a ledger that was set back and tell nothing."""

import shutil

import pytest

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.ledger import stops as ledger_stops
from coinflower.accounting.ledger.echo import NAME_BYTES, NO_TOKEN, TOKEN_BYTES
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.errors import LedgerError, SetBackError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.mechanism import Round

TERMS = Certified(Round(p=0.5, q=0.1, d=20, noise_multiplier=1.5))
BUDGET = Budget(epsilon=1e6, delta=1e-5)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", "ward 7") as ledger:
        ledger.reserve("trial", TERMS, 100_000, BUDGET)
        yield ledger


@pytest.fixture
def older(ledger, tmp_path):
    """A copy of the ledger before its next charge, whose echo the first one handed out."""
    ledger.close()
    shutil.copy(ledger.path, tmp_path / "older.db")
    return tmp_path / "older.db"


@pytest.fixture
def newest(older, ledger):
    with Ledger.open(ledger.path) as again:
        again.flip("trial", 1)
        return again.echo()


def stopped(path):
    return ledger_stops.read_stops(path).set_back_since is not None


def test_every_echo_of_a_ledger_is_in_it_for_ever(ledger):
    echoes = [ledger.echo()]
    for round_ in range(1, 20):
        ledger.flip("trial", round_)
        echoes.append(ledger.echo())
    for echo in [*echoes, NO_TOKEN, None]:
        ledger.heed(echo)
    assert not stopped(ledger.path)


def test_an_older_copy_stops_for_good_before_another_coin(older, newest):
    with Ledger.open(older) as ledger:
        with pytest.raises(SetBackError, match=r"was set back.* a server has seen. Put the newer"):
            ledger.heed(newest)
        for _ in range(2):
            for action in (
                lambda: ledger.flip("trial", 1),
                lambda: ledger.reserve("other", TERMS, 1, BUDGET),
            ):
                with pytest.raises(LedgerError, match="stopped"):
                    action()
            ledger_stops.resume(older)  # which lifts a pause only
        assert ledger.verify().entries == 1
        assert "set back" in ledger.caveat
    assert stopped(older)


def test_a_copy_that_went_on_by_itself_is_found_though_it_is_longer(older, newest):
    with Ledger.open(older) as ledger:
        ledger.flip_all("trial", range(1, 50))
        with pytest.raises(SetBackError):
            ledger.heed(newest)


def test_nobody_but_the_ledger_can_make_an_echo(older, newest, caplog):
    with Ledger.open(older) as ledger:
        for place in range(NAME_BYTES, TOKEN_BYTES):
            forged = bytearray(newest)
            forged[place] ^= 1
            ledger.heed(bytes(forged))
        assert "that this ledger never made" in caplog.text
        assert not stopped(older)
        ledger.flip("trial", 1)


def test_the_echo_of_another_ledger_is_ignored(ledger, tmp_path, caplog):
    with Ledger.create(tmp_path / "other.db", "ward 7") as other:
        other.reserve("trial", TERMS, 10, BUDGET)
        ledger.heed(other.echo())
    assert "echo of another ledger" in caplog.text
    assert not stopped(ledger.path)


@pytest.mark.parametrize("echo", [b"", b"x", "text", 7, bytes(TOKEN_BYTES + 1), True, [1.5]])
def test_what_is_no_echo_is_ignored(ledger, echo):
    ledger.heed(echo)
    assert not stopped(ledger.path)


def test_echoes_have_one_length_and_never_repeat(ledger):
    few = {ledger.echo() for _ in range(200)}
    ledger.flip_all("trial", range(1, 3000))
    many = {ledger.echo() for _ in range(200)}
    assert {len(echo) for echo in few | many} == {TOKEN_BYTES}
    assert len({echo[NAME_BYTES:] for echo in few | many}) == 400
    assert len({echo[:NAME_BYTES] for echo in few | many}) == 1


def test_a_backup_that_was_adopted_is_found_to_lack_rounds(ledger, tmp_path):
    from coinflower.accounting.ledger.backup import adopt, back_up

    back_up(ledger.path, tmp_path / "backup.db")
    ledger.flip("trial", 1)
    adopt(tmp_path / "backup.db")
    with Ledger.open(tmp_path / "backup.db") as restored, pytest.raises(SetBackError):
        restored.heed(ledger.echo())
