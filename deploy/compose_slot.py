"""A client among equal ones: takes a place that nobody else holds, and becomes its client.

``docker compose up --scale extra=N`` starts N equal containers. Each of them locks one folder of
the shared volume, with its policy and its ledger, and goes on as ``coinflower client`` under that
folder's name. The lock ends with the process, whatever ends it.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from pathlib import Path

from deploy.cli_output import complain

_LOOK_SECONDS = 2.0


def claim(slots: Path) -> Path | None:
    """Lock a free folder for the rest of this process's life; None if all are taken."""
    for folder in sorted(slots.iterdir()):
        handle = os.open(folder / "taken", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        os.set_inheritable(handle, True)
        return folder
    return None


def main() -> None:
    """Claim a place below the first argument and start a client with the other arguments."""
    slots, secrets, *options = sys.argv[1:]
    while (folder := claim(Path(slots))) is None:
        complain("All prepared places are taken; set COINFLOWER_CLIENTS to the number of clients.")
        time.sleep(_LOOK_SECONDS)
    key = Path(secrets) / f"{folder.name}.key"
    command = ["coinflower", "client", str(folder / "data" / "policy.toml"), *options]
    os.execvp(command[0], [*command, "--private-key", str(key)])


if __name__ == "__main__":
    main()
