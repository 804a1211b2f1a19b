"""The folder of a local federation: where its files are."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.deploy.machines.notary_folder import NotaryFolder
from coinflower.protocol.terms import Terms


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A prepared federation in a folder."""

    folder: Path
    terms: Terms
    delta: float
    insecure: bool
    evaluation: Terms | None = None
    """What clients agree to beside the training, if the model is measured on their records."""

    @property
    def queries(self) -> list[Terms]:
        """What clients agree to beside the training."""
        return [] if self.evaluation is None else [self.evaluation]

    @property
    def settings(self) -> Path:
        """The server's settings file."""
        return self.folder / "settings.toml"

    @property
    def schema(self) -> Path:
        """The copy of the schema, if the data is a table."""
        return self.folder / "schema.toml"

    @property
    def server(self) -> Path:
        """The server's state folder."""
        return self.folder / "server"

    @property
    def policies(self) -> list[Path]:
        """The clients' policy files, in order."""
        count = len(list(self.folder.glob("clients/client-*.toml")))
        return [self.policy(index) for index in range(count)]

    def policy(self, index: int) -> Path:
        """Return where a client's policy is."""
        return self.folder / "clients" / f"client-{index}.toml"

    @property
    def notary(self) -> NotaryFolder | None:
        """The notary's folder, in mode masked."""
        return NotaryFolder(self.folder / "notary") if self.terms.mode.masks_sums else None

    def ledger(self, index: int) -> Path:
        """Return where a client's ledger is."""
        return self.folder / "clients" / f"client-{index}.db"


def fresh_name(kind: str) -> str:
    """Return a name that nothing bears yet, of an experiment and of its folder in ``runs``."""
    moment = datetime.now().strftime("%Y%m%d-%H%M%S")
    return f"{kind}-{moment}-{secrets.token_hex(3)}"


def empty_folder(folder: Path | None, experiment: str) -> Path:
    """Return where an experiment goes: the folder, or one in ``runs``.

    Raises:
        ValueError: There is something in it.
    """
    folder = folder or Path("runs") / experiment
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another folder, or --resume {folder}.")
    return folder
