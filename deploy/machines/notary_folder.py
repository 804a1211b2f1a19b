"""A notary's folder: its keys, its record, and the owners that its operator allows.

It holds ``notary.key`` and ``notary.pub``, which owners' policies pin; ``notary-node.key`` and
``notary-node.pub``, by which it joins a server; ``record.db``; and ``owners/NAME.pub``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from coinflower.accounting.errors import UserError
from coinflower.deploy.keys.key_files import make_folder, require_private, write_file
from coinflower.deploy.keys.keys import make_node_key
from coinflower.deploy.machines.node_registry import Registry
from coinflower.masking.sealing import public_bytes
from coinflower.masking.tickets import owner_name
from coinflower.notary.notary import Notary, Owners
from coinflower.notary.record import Record
from coinflower.protocol.notary_key import notary_line

_NODE = "notary-node"


@dataclass(frozen=True)
class NotaryFolder:
    """Where a notary keeps what it has.

    Attributes:
        path: The folder.
    """

    path: Path

    def exists(self) -> bool:
        """Return whether a notary was made here."""
        return self._key_file.exists()

    @property
    def public_file(self) -> Path:
        """What data owners are given."""
        return self.path / "notary.pub"

    @property
    def node_key(self) -> Path:
        """The private key by which it joins a server."""
        return self.path / f"{_NODE}.key"

    @property
    def registry(self) -> Registry:
        """The owners that may be counted."""
        return Registry(self.path / "owners", to="be counted for the threshold")

    @property
    def _key_file(self) -> Path:
        return self.path / "notary.key"

    @property
    def _record_file(self) -> Path:
        return self.path / "record.db"

    def create(self, key: X25519PrivateKey | None = None) -> None:
        """Make the keys and an empty record.

        Args:
            key: The notary's; a fresh one if left out.

        Raises:
            ValueError: There is a notary in the folder.
        """
        for file in (self._key_file, self.public_file, self._record_file, self.node_key):
            if file.exists():
                raise UserError(f"{file} exists already; a notary is never overwritten.")
        key = key or X25519PrivateKey.generate()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        make_folder(self.path)
        make_node_key(self.path, _NODE)
        Record.create(self._record_file, public_bytes(key).hex())
        write_file(self.public_file, notary_line(public_bytes(key)).encode(), mode=0o644)
        write_file(self._key_file, private, mode=0o600)
        self.registry  # noqa: B018 - makes the folder

    def load_key(self) -> X25519PrivateKey:
        """Read the private key.

        Raises:
            ValueError: There is none, others may read it, or it is damaged.
        """
        if not self.exists():
            raise UserError(
                f"{self.path} holds no notary; make one with: coinflower notary create --folder "
                f"{self.path}"
            )
        require_private(self._key_file)
        try:
            key = load_pem_private_key(self._key_file.read_bytes(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, X25519PrivateKey):
            raise UserError(f"{self._key_file} is not a notary's private key.")
        return key

    @property
    def public_key(self) -> str:
        """The key that owners' policies pin, in hexadecimal digits."""
        return public_bytes(self.load_key()).hex()

    def open_record(self, *, read_only: bool = False) -> Record:
        """Open the record.

        Raises:
            ValueError: It is missing, damaged, or another notary's.
        """
        return Record.open(self._record_file, self.public_key, read_only=read_only)

    def open(self) -> Notary:
        """Open the notary, whose list of owners follows the folder.

        Raises:
            ValueError: Its key or its record is not in order.
        """
        return Notary(self.load_key(), self.open_record(), self.owners)

    def owners(self) -> Owners:
        """Return the owners that are allowed now."""
        return {owner_name(key): key for key in self.registry.keys().values()}
