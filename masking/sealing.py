"""What only a notary can read, and what only a notary can have said.

A secret is sealed to a notary's X25519 key by HPKE (RFC 9180), bound to what it is for: unsealed
for anything else, it is no secret at all. A notary proves its answers with a key that it shares
with the one who asked: Diffie-Hellman between the notary's key, which is pinned, and a fresh one.
"""

from __future__ import annotations

import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY_BYTES = 32
PROOF_BYTES = 32
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_TAG_BYTES = 16
_PURPOSE = b"coinflower notary's proof"


class SealError(ValueError):
    """Something was not sealed to this key for this purpose, or not proved by that one."""


def sealed_bytes(secret: int) -> int:
    """Return how long a secret of so many bytes is when sealed."""
    return KEY_BYTES + secret + _TAG_BYTES


def public_bytes(key: X25519PrivateKey) -> bytes:
    """Return the public half of a key."""
    return key.public_key().public_bytes_raw()


def seal(secret: bytes, notary: bytes, purpose: bytes) -> bytes:
    """Return a secret that only the notary with this public key can read, for one purpose.

    Raises:
        SealError: No key is like that.
    """
    try:
        return _SUITE.encrypt(secret, X25519PublicKey.from_public_bytes(notary), info=purpose)
    except ValueError as error:
        raise SealError(f"nothing can be sealed to this key: {error}") from None


def unseal(sealed: bytes, key: X25519PrivateKey, purpose: bytes) -> bytes:
    """Return what was sealed to the public half of this key for this purpose.

    Raises:
        SealError: It was not.
    """
    try:
        return _SUITE.decrypt(sealed, key, info=purpose)
    except (InvalidTag, ValueError):
        raise SealError("this was not sealed to this key for this purpose") from None


def prove(statement: bytes, key: X25519PrivateKey, asker: bytes) -> bytes:
    """Return a notary's proof of a statement, for whoever has the private half of ``asker``.

    Raises:
        SealError: No key is like ``asker``.
    """
    return hmac.digest(_shared(key, asker, public_bytes(key) + asker), statement, "sha256")


def require_proof(statement: bytes, proof: bytes, asker: X25519PrivateKey, notary: bytes) -> None:
    """Refuse a statement that the notary with this public key did not make to this asker.

    Raises:
        SealError: It did not.
    """
    shared = _shared(asker, notary, notary + public_bytes(asker))
    expected = hmac.digest(shared, statement, "sha256")
    if not hmac.compare_digest(expected, proof):
        raise SealError("this was not said by this notary, or not to this question")


def _shared(own: X25519PrivateKey, other: bytes, parties: bytes) -> bytes:
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise SealError(f"no secret can be shared with this key: {error}") from None
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=_PURPOSE + parties).derive(secret)
