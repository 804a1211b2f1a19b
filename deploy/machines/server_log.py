"""What a parameter server logs, carried to the process that serves.

Flower runs a ServerApp in a process of its own, far below ``coinflower server run`` and without a
log that anybody follows. There, ``write_records`` keeps every record as a line of JSON in a file of
the experiment's folder; here, a ``Relay`` logs it again, in the format asked for.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from coinflower.deploy.machines.logs import message_of, trace_of

FILE = "records.jsonl"
"""Name of the file within an experiment's folder."""

_KEPT = ("name", "levelno", "levelname", "created", "msecs")


class _RecordFormatter(logging.Formatter):
    """A record as a line of JSON that ``logging.makeLogRecord`` takes."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        kept = {name: vars(record)[name] for name in _KEPT}
        # Made whole here, with the trace if there is one: arguments may not survive the way.
        trace = "\n".join(trace_of(record))
        return json.dumps({**kept, "msg": message_of(record), "exc_text": trace or None})


def write_records(path: Path) -> None:
    """Keep what Coinflower logs in this process in a file."""
    handler = logging.FileHandler(path)
    handler.setFormatter(_RecordFormatter())
    top = logging.getLogger("coinflower")
    top.setLevel(logging.INFO)
    top.addHandler(handler)


class Relay:
    """Logs again what another process keeps in a file.

    Args:
        path: The file; one that is there speaks of an earlier process and is removed.
        experiment: Name of the experiment that the records are about.
    """

    def __init__(self, path: Path, experiment: str) -> None:
        self._path = path
        self._experiment = experiment
        self._read = 0
        path.unlink(missing_ok=True)

    def tell(self) -> None:
        """Log what has come since the last time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # is just being written
                    break
                self._read += len(line)
                try:
                    record = logging.makeLogRecord(json.loads(line))
                except ValueError:  # cut by a full disk
                    continue
                record.experiment = self._experiment
                logging.getLogger(record.name).handle(record)
