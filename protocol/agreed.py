"""What the owner of a ledger agreed to, as its entries say."""

from __future__ import annotations

from coinflower.accounting.ledger.entries import Tally
from coinflower.protocol.query import QueryKind
from coinflower.protocol.terms import Terms
from coinflower.protocol.unit import Unit


def terms_of(tally: Tally) -> Terms | None:
    """Return what the owner agreed to in an experiment of a ledger.

    None in entries that do not say it, and for terms that this version does not know.
    """
    try:
        terms = Terms.from_json(tally.agreed) if tally.agreed else None
    except ValueError:
        return None
    return terms if terms is not None and terms.ledger_key == tally.experiment else None


def unit_of(tally: Tally) -> Unit:
    """Return what an experiment of a ledger protects; entries that do not say it are of records."""
    terms = terms_of(tally)
    return Unit.RECORD if terms is None else terms.unit


def query_of(tally: Tally) -> QueryKind | None:
    """Return which kind of query an experiment of a ledger was; None for a training."""
    terms = terms_of(tally)
    return None if terms is None or terms.query is None else terms.query.kind
