"""Certificates, a server that shows them and takes notes, and a node that tries to join."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from coinflower.client.node.link import Link
from coinflower.client.node.polling_group import PollingGroup

HERE = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


def certificate(
    folder: Path,
    *,
    name: x509.GeneralName = HERE,
    days: tuple[int, int] = (-1, 1),
    signer: str = "test",
) -> tuple[Path, Path]:
    """Write a certificate that signs itself, and return its file and its key's."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, signer)])
    begins, ends = (
        datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=day) for day in days
    )
    made = (
        x509.CertificateBuilder(who, who, key.public_key(), x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    (folder / "cert.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return folder / "cert.pem", folder / "key.pem"


@contextlib.contextmanager
def serving_tls(cert: Path, key: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Show a certificate on a port, and keep what is received over TLS; yield both."""
    received: list[bytes] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with (
                    contextlib.suppress(OSError),
                    connection,
                    context.wrap_socket(connection, server_side=True) as secure,
                ):
                    received.append(secure.recv(1000))

        threading.Thread(target=answer, daemon=True).start()
        yield listening.getsockname()[1], received
        listening.shutdown(socket.SHUT_RDWR)


def join(address: str, authority: Path | None, *, proxy: httpx.Proxy | None = None) -> None:
    """Try to join a SuperLink as a node with a key of its own."""
    link = Link(
        address,
        insecure=False,
        root_certificates=None if authority is None else authority.read_bytes(),
        private_key=ec.generate_private_key(ec.SECP384R1()),
        heartbeat_interval=10,
        polling_group=PollingGroup(),
        stop=threading.Event(),
        proxy=proxy,
    )
    try:
        link.join()
    finally:
        link.close()
