"""Who may join: public keys of nodes as files in a folder, which the SuperLink is kept equal to."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coinflower.accounting.errors import UserError
from coinflower.deploy.keys.key_files import fingerprint, load_public_key, make_folder, write_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    from coinflower.deploy.flower.superlink import Superlink

logger = logging.getLogger("coinflower.server")

FOLDER = "nodes"
"""Name of the folder of public keys within a server's folder."""

_UNREGISTERED = "unregistered"


class Registry:
    """The public keys that an operator has let in, ``NAME.pub`` each.

    Args:
        folder: Where the files are; made if missing.
        to: What its keys may do, in words.
    """

    def __init__(self, folder: Path, to: str = "join") -> None:
        self._folder = folder
        self._to = to
        make_folder(folder)

    def allow(self, path: Path) -> str:
        """Let a key in and return what is to be told.

        Raises:
            ValueError: The file holds no public key, or another key bears its name.
        """
        key = load_public_key(path)
        present = self.names().get(_bytes(key))
        if present is not None:
            return f"{present} ({fingerprint(key)}) is allowed already."
        target = self._folder / f"{path.stem}.pub"
        if target.exists():
            raise UserError(
                f"Another key is allowed under the name {path.stem!r}; revoke it "
                f"({target}) or rename {path}."
            )
        write_file(target, path.read_bytes().strip() + b"\n", mode=0o644)
        return f"{path.stem} ({fingerprint(key)}) may {self._to}."

    def revoke(self, path: Path) -> str:
        """Keep a key out from now on and return what is to be told.

        Raises:
            ValueError: The file holds no public key, or the key was not allowed.
        """
        key = load_public_key(path)
        name = self.names().get(_bytes(key))
        if name is None:
            raise UserError(f"The key in {path} ({fingerprint(key)}) is not among those allowed.")
        for file in self._folder.glob("*.pub"):
            if _readable(file) == key:
                file.unlink()
        return f"{name} ({fingerprint(key)}) may not {self._to} any more."

    def names(self) -> dict[bytes, str]:
        """Return the names of the allowed keys; files that hold no key let nobody in."""
        return {_bytes(key): name for name, key in self.keys().items()}

    def keys(self) -> dict[str, EllipticCurvePublicKey]:
        """Return the allowed keys by name."""
        keys = {file.stem: _readable(file) for file in sorted(self._folder.glob("*.pub"))}
        return {name: key for name, key in keys.items() if key is not None}


class NodeAdmission:
    """Keeps the nodes that a SuperLink knows equal to a registry.

    Args:
        superlink: A running SuperLink that authenticates nodes.
        registry: Who may join.

    Attributes:
        shut_out: Names of nodes that are allowed, but were revoked earlier in this SuperLink's
            life: it never takes a key back that it has unregistered, so it must be restarted.
    """

    def __init__(self, superlink: Superlink, registry: Registry) -> None:
        self._superlink = superlink
        self._registry = registry
        self.shut_out: list[str] = []

    def apply(self) -> dict[str, bool]:
        """Register who is new, unregister who is gone; returns who is online, by name.

        Raises:
            SuperlinkError: The SuperLink refuses, is silent, or has ended.
        """
        nodes = self._superlink.ask(lambda control: control.nodes())
        known = {node.public_key: node for node in nodes}
        wanted = self._registry.names()
        for key, node in known.items():
            if key not in wanted and node.status != _UNREGISTERED:
                self._unregister(node.node_id, node.name)
        for key, name in wanted.items():
            if key not in known:
                self._register(key, name)
        self.shut_out = [
            name
            for key, name in wanted.items()
            if key in known and known[key].status == _UNREGISTERED
        ]
        return {
            name: key in known and known[key].status == "online" for key, name in wanted.items()
        }

    def _register(self, key: bytes, name: str) -> None:
        self._superlink.ask(lambda control: control.register_node(key, name))
        logger.info("Node %s may join.", name)

    def _unregister(self, node_id: int, name: str) -> None:
        self._superlink.ask(lambda control: control.unregister_node(node_id))
        logger.warning("Node %s is kept out: its key was revoked.", name or node_id)


def _readable(path: Path) -> EllipticCurvePublicKey | None:
    try:
        found = path.stat()
        return _key_in(path, found.st_ino, found.st_mtime_ns)
    except (ValueError, OSError):
        return None


@functools.lru_cache(maxsize=1 << 14)
def _key_in(path: Path, _file: int, _changed: int) -> EllipticCurvePublicKey:
    """Read a key; thousands are looked up in every round of a notary."""
    return load_public_key(path)


def _bytes(key: EllipticCurvePublicKey) -> bytes:
    """Return a key as Flower's SuperLink stores it."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
