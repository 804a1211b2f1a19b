"""Why a notary does not open a sum: all that it tells a server."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Objection(Enum):
    """Why nothing is opened. Details stay in the notary's own log."""

    TERMS = "The terms are not understood here, or do not name this notary."
    ROUND = "This round, or a later one, was opened before, or is not one of the experiment."
    TICKETS = "Tickets are not those of different owners whom this notary allows."
    THRESHOLD = "Fewer clients answered than the threshold of the terms."
    RECORD = "The notary's record is not in order."


class ObjectionError(Exception):
    """A notary does not open a sum.

    Attributes:
        objection: What may be told to the server.
        bad: Which tickets are to blame, if some are.
    """

    def __init__(self, objection: Objection, detail: str, bad: Sequence[int] = ()) -> None:
        super().__init__(detail)
        self.objection = objection
        self.bad = list(bad)
