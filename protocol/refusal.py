"""Why a client stays away: one sentence of a fixed list."""

from __future__ import annotations

from enum import Enum


class Refusal(Enum):
    """Why a client stays away. All that leaves the client; figures stay in its own log."""

    TERMS = "The terms are not understood here."
    MODE = "This client does not allow this mode."
    PARTICIPATION = "The participation probability p is larger than this client allows."
    SAMPLING = "The sampling rate q is larger than this client allows."
    CLIPPING = "The clip norm is larger than this client allows."
    CAP = "The cap on a client's sum is larger than this client allows, or there is none."
    NOISE = "The noise multiplier is smaller than this client allows."
    EXTENT = "The rounds, classes or parameters are more than this client allows."
    EXPERIMENTS = "This client takes part in no more experiments."
    PRICE = "The price of these terms takes this client too long to compute."
    BUDGET = "The planned rounds do not fit this client's privacy budget."
    LEDGER = "This client's ledger is not in order."
    SET_BACK = "This client's ledger was set back to an older one."
    UNIT = "This client counts its data in another unit than the terms protect."
    SCHEMA = "This client does not read its data by this schema."
    QUERY = "This client does not answer such queries, or not about its data."
    TASK = "This client does not learn this task from its data, or not with these options."
    NOTARY = "This client pins no notary, or others than the terms name, or has no signing key."
    COLLUSION = "The threshold or the colluders of the terms are fewer than this client allows."
    RING = "The ring of the terms is too small for the sums of this client."
    MODEL = "This client cannot run this model on its data."
    WEIGHTS = "This client does not have these pretrained weights."
    FINGERPRINT = "This client knows another model by this name."
    PAUSED = "The owner has paused this client."
    LEFT = "The owner has left this experiment."


class RefusedError(Exception):
    """The owner's policy does not allow what was asked.

    Attributes:
        refusal: What may be told to the server.
    """

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super().__init__(detail)
        self.refusal = refusal
