"""Echoes: sealed notes of a ledger's last entry, which servers keep and send back.

With every answer a client hands out a token, made after what it answers is on disk, and a server
sends the latest one along with its next question. A client whose ledger lacks the entry in it knows
that the ledger was set back. The key lies in the ledger, so a server can withhold a token but not
make one. A token reveals nothing to it either: the number of entries and the head, which depend on
other experiments and other servers' coins, are encrypted, and every token has the same length.
"""

from __future__ import annotations

import logging
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from coinflower.accounting.ledger.witness import Testimony

logger = logging.getLogger("coinflower.ledger")

NAME_BYTES = 16
_NONCE_BYTES = 12
_COUNT_BYTES = 8
_HEAD_BYTES = 32
_TAG_BYTES = 16
TOKEN_BYTES = NAME_BYTES + _NONCE_BYTES + _COUNT_BYTES + _HEAD_BYTES + _TAG_BYTES
NO_TOKEN = bytes(TOKEN_BYTES)
"""Stands where there is nothing to echo."""

_PURPOSE = b"coinflower echo"


def seal(state: Testimony, key: str) -> bytes:
    """Return the token of a ledger's state."""
    name, nonce = bytes.fromhex(state.ledger), os.urandom(_NONCE_BYTES)
    content = state.entries.to_bytes(_COUNT_BYTES, "big") + bytes.fromhex(state.head)
    return name + nonce + AESGCM(bytes.fromhex(key)).encrypt(nonce, content, _PURPOSE + name)


def unseal(token: object, ledger: str, key: str) -> Testimony | None:
    """Return the state that a token speaks of; None if it is not of this ledger's making.

    Args:
        token: What a server sent.
        ledger: This ledger's public name.
        key: Its key.
    """
    if token is None or token == NO_TOKEN:
        return None
    if not isinstance(token, bytes) or len(token) != TOKEN_BYTES:
        logger.warning("A server sent a malformed echo; ignored.")
        return None
    name, nonce = token[:NAME_BYTES], token[NAME_BYTES : NAME_BYTES + _NONCE_BYTES]
    if name != bytes.fromhex(ledger):
        logger.warning("A server sent the echo of another ledger; was this client's replaced?")
        return None
    try:
        sealed = token[NAME_BYTES + _NONCE_BYTES :]
        content = AESGCM(bytes.fromhex(key)).decrypt(nonce, sealed, _PURPOSE + name)
    except InvalidTag:
        logger.warning("A server sent an echo that this ledger never made; ignored.")
        return None
    return Testimony(
        ledger=ledger,
        entries=int.from_bytes(content[:_COUNT_BYTES], "big"),
        head=content[_COUNT_BYTES:].hex(),
    )
