"""What every question to a node holds."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import ConfigRecord, RecordDict

from coinflower.protocol import messages
from coinflower.protocol.terms import Terms


def question(terms: Terms, fields: Mapping[str, int | bytes] | None = None) -> RecordDict:
    """Return the content of a message that carries the terms; clients remember nothing.

    It is salted: clients that are not asked must not find out from its hash that others are.
    """
    record = ConfigRecord({messages.TERMS: terms.to_json(), **(fields or {})})
    record[messages.SALT] = messages.salt()
    return RecordDict({messages.ASK: record})
