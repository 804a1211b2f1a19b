"""A notary's answer to a server, proved: it was asked this, and says that.

It is the sum of the masks of tickets, an objection, or vouchers. Any node may claim to be the
notary of the terms, but only the one that has the notary's key can prove what it says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.masking.sealing import prove, require_proof
from coinflower.masking.tickets import Occasion


def objection_bytes(sentence: str, bad: Sequence[int]) -> bytes:
    """Return what is proved of an objection."""
    return json.dumps([sentence, *bad]).encode()


def prove_answer(
    occasion: Occasion, asked: bytes, told: bytes, key: X25519PrivateKey, asker: bytes
) -> bytes:
    """Return the proof that the notary of this key said this when it was asked that.

    Raises:
        ValueError: ``asker`` is no key.
    """
    return prove(_statement(occasion, asked, told), key, asker)


def require_answer(
    occasion: Occasion,
    asked: bytes,
    told: bytes,
    proof: bytes,
    *,
    asker: X25519PrivateKey,
    notary: bytes,
) -> None:
    """Refuse an answer that does not come from the notary with this public key.

    Raises:
        ValueError: It does not.
    """
    require_proof(_statement(occasion, asked, told), proof, asker, notary)


def _statement(occasion: Occasion, asked: bytes, told: bytes) -> bytes:
    return occasion.bound_to(b"coinflower answer", sha256(asked).digest()) + told
