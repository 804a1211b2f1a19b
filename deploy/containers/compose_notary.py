"""The notary of the container cluster in mode masked, in a volume of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.accounting.errors import UserError
from coinflower.deploy.machines.node_registry import Registry
from coinflower.deploy.machines.notary_folder import NotaryFolder

FOLDER = "notary"
"""The notary's folder within its volume."""


def require_there(volume: Path) -> None:
    """Refuse to go on with a cluster whose notary is gone.

    Raises:
        ValueError: It is.
    """
    if not _folder(volume).exists():
        raise UserError(
            "The notary is gone, and nobody else can open this run's sums; restore its volume as "
            "it was last, or start over with everything after: docker compose down --volumes"
        )
    _folder(volume).open_record(read_only=True).close()


def kept_key(volume: Path) -> X25519PrivateKey | None:
    """Return the key of a notary that an earlier setup, cut short, has made."""
    folder = _folder(volume)
    return folder.load_key() if folder.exists() else None


def make(volume: Path, key: X25519PrivateKey) -> str:
    """Make the notary with this key and return what is to be told."""
    _folder(volume).create(key)
    return "Made a notary."


def introduce(volume: Path, owners: Sequence[Path], server: Registry) -> list[str]:
    """Let the notary join the server, and let it count the owners of these public keys.

    Once each: a key that an operator has revoked since is left alone.

    Returns:
        What is to be told.
    """
    folder = _folder(volume)
    mark = folder.path / "introduced"
    if mark.exists():
        return []
    told = [server.allow(folder.node_key.with_suffix(".pub"))]
    told += [folder.registry.allow(owner) for owner in owners]
    mark.touch()
    return told


def _folder(volume: Path) -> NotaryFolder:
    return NotaryFolder(volume / FOLDER)
