"""Keys and certificates of a federation: a private authority, the server's certificate, node keys.

One folder holds ``ca.pem`` and ``ca.key`` (the authority), ``server.pem`` and ``server.key`` (what
the gateway and the SuperLink show), and ``NAME.key`` and ``NAME.pub`` (a node, in OpenSSH's format
as Flower wants it). Files are written whole or not at all, private ones for their owner only.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coinflower.accounting.errors import UserError
from coinflower.deploy.keys.key_files import (
    fingerprint,
    load_certificate,
    load_public_key,
    load_signing_key,
    make_folder,
    private_pem,
    require_private,
    write_file,
)

CA_CERTIFICATE, CA_KEY = "ca.pem", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "server.pem", "server.key"
ALWAYS_NAMED = ("localhost", "127.0.0.1")
"""What every server certificate is valid for: the gateway reaches the SuperLink by these."""

CA_DAYS, SERVER_DAYS = 3650, 397
SOON = timedelta(days=30)
# A client whose clock is a little behind must not take a new certificate for one of the future.
_BACKDATED = timedelta(hours=1)
_HOST_NAME = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RESERVED = ("ca", "server")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing in a folder of keys.

    Attributes:
        kind: ``authority``, ``server`` or ``node``.
        name: What it is for: the addresses of a server, the name of a node.
        path: Its public file.
        expires: When it ends; None for a node key, which ends when it is revoked.
        fingerprint: SHA-256, as OpenSSH shows it for a node.
        private: Whether the private half lies in the folder too.
    """

    kind: str
    name: str
    path: Path
    expires: datetime | None
    fingerprint: str
    private: bool


def make_authority(folder: Path, *, days: int = CA_DAYS, renew: bool = False) -> Item:
    """Make a private authority, or give the present one a new certificate for the same key.

    Raises:
        ValueError: There is an authority already and ``renew`` is not asked for, or there is none.
    """
    _require_days(days)
    present = folder / CA_CERTIFICATE
    if renew:
        key = load_signing_key(folder / CA_KEY)
    elif present.exists() or (folder / CA_KEY).exists():
        raise UserError(
            f"{folder} holds an authority already, which every certificate depends on; "
            "renew it with --renew, or choose another folder."
        )
    else:
        key = _new_key(folder / CA_KEY)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Coinflower authority")])
    builder = _builder(name, name, key.public_key(), key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(sign_certificates=True), critical=True)
    write_file(present, _pem(builder.sign(key, hashes.SHA384())), mode=0o644)
    return _certificate_item("authority", present)


def make_server_certificate(folder: Path, names: Sequence[str], *, days: int | None = None) -> Item:
    """Make the server's certificate, or renew it: the key stays, and so do names unless given.

    Args:
        folder: Where the authority is.
        names: Host names and IP addresses that clients use; loopback is always added.
        days: How long it is valid; by default 397 days or as long as the authority.

    Raises:
        ValueError: There is no authority, no name, a name that is none, or ``days`` too many.
    """
    authority = load_certificate(folder / CA_CERTIFICATE)
    authority_key = load_signing_key(folder / CA_KEY)
    left = (authority.not_valid_after_utc - datetime.now(UTC)).days
    days = min(SERVER_DAYS, left) if days is None else days
    if left < 1:
        raise UserError(f"The authority in {folder} has expired; renew it: keys init --renew.")
    _require_days(days)
    if days > left:
        raise UserError(f"days = {days} is longer than the authority's own {left} days.")
    path = folder / SERVER_CERTIFICATE
    if not names and path.exists():
        names = subject_names(load_certificate(path))
    if not names:
        raise UserError("Name at least one host name or IP address that clients use: --name.")
    wanted = list(dict.fromkeys([*names, *ALWAYS_NAMED]))
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in wanted])
    key_path = folder / SERVER_KEY
    key = load_signing_key(key_path) if key_path.exists() else _new_key(key_path)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, wanted[0][:64])])
    builder = _builder(
        subject, authority.subject, key.public_key(), authority_key.public_key(), days
    )
    for extension, critical in (
        (alternatives, False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(sign_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    write_file(path, _pem(builder.sign(authority_key, hashes.SHA384())), mode=0o644)
    return _certificate_item("server", path)


def make_node_key(folder: Path, name: str) -> Item:
    """Make a node's key pair, ECDSA on P-384, ``NAME.key`` and ``NAME.pub``.

    Raises:
        ValueError: The name cannot be a file's, or there is such a key already.
    """
    if not _NODE_NAME.fullmatch(name) or name in _RESERVED:
        raise UserError(
            f"{name!r} cannot name a node: use letters, digits, dots, dashes, at most 64 of them."
        )
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    for path in (private, public):
        if path.exists():
            raise UserError(f"{path} exists already; a key is never overwritten.")
    key = ec.generate_private_key(ec.SECP384R1())
    make_folder(folder)
    write_file(private, private_pem(key, serialization.PrivateFormat.OpenSSH), mode=0o600)
    line = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    write_file(public, line + f" {name}\n".encode(), mode=0o644)
    return _node_item(public)


def list_items(folder: Path) -> list[Item]:
    """Return everything in a folder of keys: the authority, the server, the nodes by name.

    Raises:
        ValueError: The folder holds nothing of the kind, or a file is damaged.
    """
    items = [
        _certificate_item(kind, folder / name)
        for kind, name in (("authority", CA_CERTIFICATE), ("server", SERVER_CERTIFICATE))
        if (folder / name).exists()
    ]
    items += [_node_item(path) for path in sorted(folder.glob("*.pub"))]
    if not items:
        raise UserError(f"{folder} holds no keys; make some with: coinflower keys init {folder}")
    return items


def require_server_files(folder: Path) -> Item:
    """Check that a server can show what lies in the folder, and return its certificate.

    Raises:
        ValueError: Something is missing, open to others, expired, or does not belong together.
    """
    authority = load_certificate(folder / CA_CERTIFICATE)
    certificate = load_certificate(folder / SERVER_CERTIFICATE)
    require_private(folder / SERVER_KEY)
    if certificate.public_key() != load_signing_key(folder / SERVER_KEY).public_key():
        raise UserError(f"{folder / SERVER_KEY} is not the key of {folder / SERVER_CERTIFICATE}.")
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise UserError(
            f"{folder / SERVER_CERTIFICATE} was not signed by {folder / CA_CERTIFICATE}."
        ) from None
    for what, one in (("authority", authority), ("server", certificate)):
        if one.not_valid_after_utc < datetime.now(UTC):
            again = "keys init --renew" if what == "authority" else "keys server"
            raise UserError(
                f"The {what}'s certificate in {folder} expired on "
                f"{one.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; renew it: coinflower {again} …"
            )
    return _certificate_item("server", folder / SERVER_CERTIFICATE)


def subject_names(certificate: x509.Certificate) -> list[str]:
    """Return the host names and addresses that a certificate is valid for."""
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in extension.value]


def _certificate_item(kind: str, path: Path) -> Item:
    certificate = load_certificate(path)
    name = "authority" if kind == "authority" else ", ".join(subject_names(certificate))
    return Item(
        kind=kind,
        name=name,
        path=path,
        expires=certificate.not_valid_after_utc,
        fingerprint="SHA256:"
        + sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest(),
        private=path.with_suffix(".key").exists(),
    )


def _node_item(path: Path) -> Item:
    return Item(
        kind="node",
        name=path.stem,
        path=path,
        expires=None,
        fingerprint=fingerprint(load_public_key(path)),
        private=path.with_suffix(".key").exists(),
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer_public: ec.EllipticCurvePublicKey,
    days: int,
) -> x509.CertificateBuilder:
    moment = datetime.now(UTC).replace(microsecond=0)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_public)
    return (
        x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number())
        .not_valid_before(moment - _BACKDATED)
        .not_valid_after(moment + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(identifier, critical=False)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not _HOST_NAME.fullmatch(name.lower()) or len(name) > 253:
        raise UserError(f"{name!r} is neither a host name nor an IP address.")
    return x509.DNSName(name.lower())


def _require_days(days: int) -> None:
    if not 1 <= days <= 36500:
        raise UserError(f"days = {days} must lie in 1 to 36500.")


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP384R1())
    make_folder(path.parent)
    write_file(path, private_pem(key, serialization.PrivateFormat.PKCS8), mode=0o600)
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
