"""The notary of a federation on this machine: a process of its own, as on a machine of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from coinflower.deploy.flower.guard import start_guarded, stop_guarded
from coinflower.deploy.machines.notary_folder import NotaryFolder
from coinflower.protocol.terms import Terms

LOG = "notary.log"


@contextlib.contextmanager
def local_notary(
    folder: NotaryFolder | None, address: str, logs: Path
) -> Iterator[Callable[[], bool]]:
    """Run a notary as long as the block lasts; yields whether it has ended before.

    Args:
        folder: The notary's; None for a federation that has none.
        address: The SuperLink on this machine.
        logs: Folder of logs.
    """
    if folder is None:
        yield lambda: False
        return
    logs.mkdir(parents=True, exist_ok=True)
    program = str(Path(sys.executable).parent / "coinflower")
    command = [program, "notary", "run", "--folder", str(folder.path)]
    command += ["--superlink", address, "--insecure"]
    with (logs / LOG).open("ab") as log:
        guard = start_guarded(command, env=dict(os.environ), log=log)
    try:
        yield lambda: guard.poll() is not None
    finally:
        stop_guarded(guard)


def notary_results(folder: NotaryFolder, terms: Terms) -> dict[str, Any]:
    """Return what a notary's record says of a run."""
    record = folder.open_record(read_only=True)
    try:
        opened = [each for each in record.opened() if each.terms == terms.hash]
        return {
            "key": folder.public_key,
            "rounds_opened": sum(each.rounds for each in opened),
            "fewest_clients": min((each.fewest_owners for each in opened), default=None),
            "threshold": terms.threshold,
            "colluders": terms.colluders,
            "honest_shares": terms.honest_shares,
            "ring_bits": terms.ring_bits,
            "witnesses": record.witnesses(),
        }
    finally:
        record.close()
