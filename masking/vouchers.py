"""Vouchers: what a notary remembers of a client's ledger, told so that no server can change it.

A client that enrols sends a challenge, the public half of a fresh key. Each notary returns the last
echo that it got from this ledger with an opened round, and proves it for this challenge: a server
can withhold a voucher, but neither make one nor show an older one.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.accounting.ledger.echo import NAME_BYTES, TOKEN_BYTES
from coinflower.masking.sealing import KEY_BYTES, PROOF_BYTES, prove, require_proof
from coinflower.masking.tickets import OWNER_BYTES

REQUEST_BYTES = OWNER_BYTES + NAME_BYTES + KEY_BYTES
"""What a client asks of the notaries: the name of its key, its ledger's name, and the challenge."""
VOUCHER_BYTES = TOKEN_BYTES + PROOF_BYTES
NO_VOUCHER = bytes(VOUCHER_BYTES)
"""Stands where a notary does not allow the owner."""

_PURPOSE = b"coinflower voucher"


def write_request(owner: bytes, ledger: bytes, challenge: bytes) -> bytes:
    """Return what a client asks of the notaries."""
    return owner + ledger + challenge


def split_request(request: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the owner, the ledger and the challenge that a request names."""
    ledger_at, challenge_at = OWNER_BYTES, OWNER_BYTES + NAME_BYTES
    return request[:ledger_at], request[ledger_at:challenge_at], request[challenge_at:]


def write_voucher(request: bytes, terms: str, token: bytes, key: X25519PrivateKey) -> bytes:
    """Return a notary's answer to a request.

    Args:
        request: What the client asked.
        terms: Hash of the terms that it enrols in.
        token: The last echo of its ledger, or ``NO_TOKEN``.
        key: The notary's.

    Raises:
        ValueError: The challenge is no key.
    """
    return token + prove(_statement(request, terms, token), key, split_request(request)[2])


def read_voucher(
    voucher: bytes, request: bytes, terms: str, challenge: X25519PrivateKey, notary: bytes
) -> bytes:
    """Return the echo that a notary vouches for.

    Raises:
        ValueError: The notary did not answer this request so.
    """
    token, proof = voucher[:TOKEN_BYTES], voucher[TOKEN_BYTES:]
    require_proof(_statement(request, terms, token), proof, challenge, notary)
    return token


def _statement(request: bytes, terms: str, token: bytes) -> bytes:
    return _PURPOSE + bytes.fromhex(terms) + request + token
