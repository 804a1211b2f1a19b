"""What must hold whatever happened, checked from the files that a federation left behind."""

import contextlib
import math
import re
import sqlite3
from collections import Counter
from dataclasses import dataclass

from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.protocol.policy import load_policy
from coinflower.server.checkpoint import CheckpointFolder
from coinflower.server.journal import read_metrics
from coinflower.server.settings import load_settings
from tests.soak.witness import ASKED, COINS, SAID, SUM
from tests.soak.world import NOTARY_LOG, read_witness

LEDGER = "every ledger verifies"
COIN = "each charged round has exactly one coin"
ANSWER = "each answer belongs to a charged round, and is the only one"
TAILS = "nobody answers on tails where that would show"
LEFT = "nothing left a client uncharged"
ONCE = "no client was asked for a round twice"
COUNTED = "the server counted only what clients charged and sent"
BUDGET = "no budget is exceeded"
FORWARD = "rounds only go forward, and none is lost"
FINITE = "the server's files are whole, and its model is finite"
OPENED_ONCE = "a notary opens a round at most once"
THRESHOLD = "a notary opens no sum of fewer clients than the threshold"
BACKED = "what a notary opened was charged and answered by as many clients"
STEPPED = "the model moves in opened rounds only"
NAMED = "the server names dishonest clients and goes on without them"


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """How often something was checked, and where it did not hold."""

    name: str
    checks: int
    violations: tuple[str, ...]


def check_named(protocol, log):
    """Check that a server's log tells of the clients of ``dishonest.py``."""
    said = log.read_text()
    for sentence in ("stays away: It declares more records than", "sent: a vector"):
        protocol.expect(NAMED, sentence in said, f"the server's log has no {sentence!r}")


class Protocol:
    """Collects checks."""

    def __init__(self):
        self._checks = Counter()
        self._violations = {}

    def expect(self, name, holds, otherwise):
        self._checks[name] += 1
        if not holds:
            self._violations.setdefault(name, []).append(otherwise)

    def invariants(self):
        return [
            Invariant(name=name, checks=count, violations=tuple(self._violations.get(name, ())))
            for name, count in self._checks.items()
        ]


@dataclass(frozen=True, kw_only=True)
class Book:
    """What a client's ledger says: coins and answers by experiment and round."""

    coins: dict
    answers: frozenset

    def charged(self, key):
        return key in self.coins


def check(cluster, settings, protocol=None, *, strangers=0):
    """Check a federation that has stopped.

    Args:
        cluster: The federation: policies and ledgers, and the witness's lines if there are any.
        settings: Settings files of the experiments that were played with it.
        protocol: Where to collect; a new one if None.
        strangers: Clients that no ledger and no witness tells of.

    Returns:
        The protocol.
    """
    protocol = protocol or Protocol()
    experiments = [load_settings(path) for path in settings]
    tells = {run.terms.ledger_key for run in experiments if not run.terms.mode.answers_always}
    books = {}
    for index, path in enumerate(cluster.policies):
        book = _read_book(protocol, path, cluster.ledger(index), tells)
        if book is not None:
            books[path.stem] = book
    lines = read_witness(cluster.folder)
    _check_witness(protocol, books, lines)
    for run in experiments:
        _check_server(protocol, run, books, lines, strangers)
        if run.terms.mode.masks_sums:
            _check_notary(protocol, run, books, cluster)
    return protocol


def _check_notary(protocol, run, books, cluster):
    """Compare what the notary said that it opened with its record, the ledgers and the model."""
    said = re.findall(r"Opened round (\d+) of (\S+) for (\d+) owners", _log_of(cluster))
    told = Counter(int(round_) for round_, name, _ in said if name == run.terms.experiment)
    opened = read_openings(cluster.notary.path / "record.db", run.terms.hash)
    for round_, count in told.items():
        protocol.expect(OPENED_ONCE, count == 1, f"round {round_} was opened {count} times")
        protocol.expect(OPENED_ONCE, round_ in opened, f"round {round_} is not in the record")
    check_openings(protocol, run.terms, opened, books.values())
    saved = CheckpointFolder(run.state, run.terms.hash).load()
    if saved is not None and saved.round:
        protocol.expect(STEPPED, saved.round in opened, f"round {saved.round} was never opened")


def _log_of(cluster):
    return (cluster.folder / NOTARY_LOG).read_text(errors="replace")


def read_openings(record, terms):
    """Return how many clients each opened round had."""
    with contextlib.closing(sqlite3.connect(record)) as connection:
        rows = connection.execute("SELECT round, owners FROM openings WHERE terms = ?", (terms,))
        return dict(rows.fetchall())


def check_openings(protocol, terms, opened, books):
    """Check what was opened.

    Args:
        protocol: Where to collect.
        terms: The terms.
        opened: How many clients each opened round had.
        books: What the clients' ledgers say.
    """
    for round_, owners in opened.items():
        told = f"{terms.experiment}, round {round_}: {owners} clients"
        protocol.expect(THRESHOLD, owners >= terms.threshold, told)
        key = (terms.ledger_key, round_)
        backed = sum(book.charged(key) and key in book.answers for book in books)
        protocol.expect(BACKED, owners <= backed, f"{told}, {backed} of them charged")


def _read_book(protocol, policy_path, ledger_path, tells):
    """Check a ledger on its own, and return what it says."""
    policy = load_policy(policy_path)
    name = ledger_path.name
    try:
        with Ledger.open(ledger_path) as ledger:
            entries = list(ledger.history())
            tallies = ledger.tallies()
            spent = ledger.spent(policy.budget.delta)
            reserved = ledger.reserved_epsilon(policy.budget.delta)
    except LedgerError as error:
        protocol.expect(LEDGER, False, str(error))
        return None
    protocol.expect(LEDGER, True, "")
    epsilon = policy.budget.epsilon
    for what, cost in (("spent", spent), ("reserved", reserved)):
        protocol.expect(BUDGET, cost <= epsilon, f"{name}: {what} {cost:.9g} of {epsilon:.9g}")
    for tally in tallies:
        told = f"{name}: {tally.charged} of {tally.reserved_rounds} reserved rounds charged"
        protocol.expect(BUDGET, tally.charged <= tally.reserved_rounds, told)
    return read_entries(protocol, name, entries, tells)


def read_entries(protocol, name, entries, tells):
    """Check what a ledger holds, and return it as a book.

    Args:
        protocol: Where to collect.
        name: Of the ledger.
        entries: All of it.
        tells: Experiments in which an answer shows the coin.
    """
    charges = [entry for entry in entries if entry.kind == "charge"]
    coins = {(entry.experiment, entry.round): entry.coin for entry in charges}
    times = Counter((entry.experiment, entry.round) for entry in charges)
    for key, count in times.items():
        holds = count == 1 and isinstance(coins[key], bool)
        protocol.expect(COIN, holds, f"{name}: {key} charged {count} times, coin {coins[key]}")
    answers = Counter(
        (entry.experiment, entry.round) for entry in entries if entry.kind == "answer"
    )
    for key, count in answers.items():
        told = f"{name}: {key} answered {count} times"
        protocol.expect(ANSWER, count == 1 and key in coins, told)
        if key[0] in tells:
            protocol.expect(TAILS, coins.get(key) is True, f"{name}: {key} answered on tails")
    return Book(coins=coins, answers=frozenset(answers))


def _check_witness(protocol, books, lines):
    """Compare what clients said with what their ledgers say."""
    asked = Counter()
    sums = Counter()
    for line in lines:
        client, what = line["client"], line["what"]
        keys = [(line["experiment"], round_) for round_ in line["rounds"]]
        if line["event"] == ASKED:
            asked.update((client, what, *key) for key in keys)
        elif client in books and line["event"] == SAID and keys:
            _check_said(protocol, books[client], line, keys)
            sums.update((client, *key) for key in keys if what == SUM)
    for question, count in asked.items():
        protocol.expect(ONCE, count == 1, f"{question} asked {count} times")
    for answer, count in sums.items():
        protocol.expect(ANSWER, count == 1, f"{answer} sent {count} times")


def _check_said(protocol, book, line, keys):
    for index, key in enumerate(keys):
        told = f"{line['client']}: {line['what']} of {key} left"
        protocol.expect(LEFT, book.charged(key), f"{told} uncharged")
        if line["what"] == COINS:
            said, recorded = line["coins"][index], book.coins.get(key)
            protocol.expect(LEFT, said == recorded, f"{told}: {said}, recorded {recorded}")
        if line["what"] == SUM:
            protocol.expect(LEFT, key in book.answers, f"{told} unclaimed")


def _check_server(protocol, run, books, lines, strangers):
    """Compare what the server wrote with what the ledgers say, and with itself."""
    experiment = run.terms.ledger_key
    sent = Counter(
        round_
        for line in lines
        if line["event"] == SAID and line["what"] == SUM and line["experiment"] == experiment
        for round_ in line["rounds"]
    )
    try:
        metrics = read_metrics(run.state)
        checkpoints = CheckpointFolder(run.state, run.terms.hash)
        saved, used = checkpoints.load(), checkpoints.used_through()
    except ValueError as error:
        protocol.expect(FINITE, False, f"{experiment}: {error}")
        return
    before = 0
    for row in metrics:
        round_ = row["round"]
        key = (experiment, round_)
        charged = sum(book.charged(key) for book in books.values())
        heads = sum(bool(book.coins.get(key)) for book in books.values())
        answers = sum(key in book.answers for book in books.values())
        tells = not run.terms.mode.answers_always
        told = f"{experiment}, round {round_}"
        for what, most in (
            ("available", charged),
            *([("participants", heads)] if tells else []),
            ("answered", answers),
            *([("answered", sent[round_])] if lines else []),
        ):
            holds = row[what] <= most + strangers
            protocol.expect(COUNTED, holds, f"{told}: {row[what]} {what} of {most}")
        protocol.expect(FORWARD, before < round_ <= used, f"{told} after {before}, used {used}")
        before = round_
        # In mode masked a notary that is away voids a round.
        if row["available"] >= run.least_clients and not run.terms.mode.masks_sums:
            holds = saved is not None and saved.round >= round_
            protocol.expect(FORWARD, holds, f"{told} is not in the checkpoint")
    if saved is not None:
        protocol.expect(FORWARD, saved.round <= used, f"checkpoint {saved.round}, used {used}")
        for what, values in {"weights": saved.weights, **saved.memory}.items():
            norm = float(abs(values).sum())
            protocol.expect(FINITE, math.isfinite(norm), f"{experiment}: {what} are not finite")
