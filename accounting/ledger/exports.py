"""A ledger's entries in formats that others read. They name every coin."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict

from coinflower.accounting.ledger.entries import COLUMNS
from coinflower.accounting.ledger.ledger import Ledger


def to_json(ledger: Ledger) -> str:
    """Return the whole ledger as JSON."""
    entries = [asdict(entry) for entry in ledger.history()]
    return json.dumps({"data_set": ledger.data_set, "entries": entries}, indent=1)


def to_csv(ledger: Ledger) -> str:
    """Return all entries as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(entry) for entry in ledger.history())
    return text.getvalue()
