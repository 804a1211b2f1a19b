"""What the owner's page says in words."""

from __future__ import annotations

from pathlib import Path

from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.page.ledger_snapshot import Reader
from coinflower.client.page.view import Subject, render
from coinflower.protocol.unit import Unit
from tests.support.builders import make_policy, make_terms

BUDGET = Budget(epsilon=40.0, delta=1e-3)


def figures_are_for(subject: Subject) -> str:
    text = " ".join(render(subject, subject.reader.look(now=True), "key").split())
    return text.partition("can be learned about ")[2].partition(", from all rounds")[0]


def test_the_page_says_what_its_figures_protect(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ward.db", "ward 7") as ledger:
        reader = Reader(path=ledger.path)
        assert figures_are_for(Subject(reader=reader, delta=1e-3)) == "one record"
        policy = make_policy(unit=Unit.PERSON)
        subject = Subject(reader=reader, delta=1e-3, policy=policy)
        for unit, words in (
            (Unit.PERSON, "one person, with all of that person&#39;s records in this data set"),
            (Unit.RECORD, "one person who has a single record in this data set, since some"),
        ):
            terms = make_terms(unit=unit)
            cost = terms.round_cost(20)
            assert cost is not None
            ledger.reserve(terms.ledger_key, cost, 2, BUDGET, agreed=terms.to_json())
            assert figures_are_for(subject).startswith(words)
        text = render(subject, subject.reader.look(now=True), "key")
        assert text.count("protects persons,") == 1
        assert "<dt>Persons, at most</dt>" in text
