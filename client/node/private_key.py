"""Who a node is: its private key."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from coinflower.accounting.errors import UserError


def load_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a node's key, as ``ssh-keygen -t ecdsa -b 384`` writes it.

    Raises:
        ValueError: If the file holds no such key, or a password protects it.
    """
    try:
        key = load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, NotImplementedError, UnsupportedAlgorithm) as error:
        raise UserError(f"{path} is not an unprotected private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is not an ECDSA key; make one with ssh-keygen -t ecdsa -b 384")
    return key
