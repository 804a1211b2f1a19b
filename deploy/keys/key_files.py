"""Files of keys and certificates: written whole and for their owner, read with care."""

from __future__ import annotations

import os
import secrets
from base64 import b64encode
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coinflower.accounting.errors import UserError


def require_private(path: Path) -> None:
    """Refuse a private key that others on this machine may read.

    Raises:
        ValueError: It is missing, or readable or writable by group or others.
    """
    if not path.is_file():
        raise UserError(f"There is no key at {path}.")
    if path.stat().st_mode & 0o077:
        raise UserError(
            f"{path} can be read by others on this machine; close it with: chmod 600 {path}"
        )


def load_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Read a node's public key, ``NAME.pub``.

    Raises:
        ValueError: The file holds no ECDSA public key in OpenSSH's format.
    """
    content = path.read_bytes()
    if b"PRIVATE KEY" in content:
        raise UserError(f"{path} is a private key, which must stay where it is; take the .pub.")
    try:
        key = serialization.load_ssh_public_key(content)
    except (ValueError, NotImplementedError, UnsupportedAlgorithm):
        raise UserError(f"{path} is not a public key in OpenSSH's format.") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{path} is not an ECDSA key; make one with: coinflower keys client")
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return the fingerprint that ``ssh-keygen -l`` shows."""
    blob = serialization.ssh_key_fingerprint(key, hashes.SHA256())
    return "SHA256:" + b64encode(blob).decode().rstrip("=")


def load_certificate(path: Path) -> x509.Certificate:
    """Read a PEM certificate.

    Raises:
        ValueError: There is none.
    """
    if not path.is_file():
        raise UserError(f"There is no certificate at {path}; make it with: coinflower keys")
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise UserError(f"{path} is not a PEM certificate.") from None


def load_signing_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the key of an authority or a server.

    Raises:
        ValueError: It is missing, open to others, or not an EC key.
    """
    require_private(path)
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UserError(f"{path} is not an unprotected private key in PEM format.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is not an elliptic-curve key.")
    return key


def make_folder(folder: Path) -> None:
    """Make a folder for its owner only; one that is there keeps its mode."""
    if not folder.exists():
        folder.mkdir(parents=True, mode=0o700)


def private_pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    """Return a private key as PEM, not protected by a password."""
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def write_file(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file of that mode; all of it appears, or nothing."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
