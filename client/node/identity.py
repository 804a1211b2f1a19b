"""Who a node is: its key, and the signature on its requests."""

from __future__ import annotations

import time
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from coinflower.accounting.errors import UserError

if TYPE_CHECKING:
    from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

_SIGNATURE_SECONDS = 60.0


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


class Identity:
    """Signs requests as Flower's SuperNode does, but not every single one.

    The signature covers only the time and holds for five minutes, so one per minute is enough.

    Args:
        key: The node's private key.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.public_key = public_key_to_bytes(key.public_key())
        self._version = dict(RuntimeVersionMetadata.from_local_component("SuperNode").as_metadata())
        self._headers: dict[str, str] = {}
        self._signed_at = float("-inf")

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Sign a request and pass it on."""
        if time.monotonic() - self._signed_at > _SIGNATURE_SECONDS:
            self._signed_at = time.monotonic()
            timestamp = now().isoformat()
            signature = sign_message(self._key, timestamp.encode("ascii"))
            self._headers = self._version | {
                FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public_key).decode("ascii"),
                TIMESTAMP_HEADER: timestamp,
                FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode("ascii"),
            }
        context.request.headers.update(self._headers)
        return call_next(context)
