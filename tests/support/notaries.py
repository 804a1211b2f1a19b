"""A notary in the test's own process, and the keys of owners that it knows."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from coinflower.client.node.private_key import load_private_key
from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import owner_name
from coinflower.notary.notary import Notary
from coinflower.notary.record import Record
from coinflower.protocol.policy import load_policy

KEY = X25519PrivateKey.from_private_bytes(b"the key of a notary that is none")
NOTARY = public_bytes(KEY).hex()


def write_signing_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Write an owner's private key and return it."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return key


def signing_keys(policies: Iterable[Path]) -> list[ec.EllipticCurvePrivateKey]:
    """Return the keys of the owners of these policies."""
    paths = [load_policy(policy).signing_key for policy in policies]
    return [load_private_key(path) for path in paths if path is not None]


def make_notary(
    folder: Path, owners: Iterable[ec.EllipticCurvePrivateKey], key: X25519PrivateKey = KEY
) -> Notary:
    """Return a notary that allows these owners; its record outlives it."""
    folder.mkdir(parents=True, exist_ok=True)
    path, name = folder / "record.db", public_bytes(key).hex()
    if not path.exists():
        Record.create(path, name)
    allowed = {owner_name(each.public_key()): each.public_key() for each in owners}
    return Notary(key, Record.open(path, name), lambda: allowed)
