"""Logs that a person can follow or a machine can parse."""

from __future__ import annotations

import copy
import json
import logging
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from coinflower.protocol.foreign import printable

_QUIET = ("httpx", "httpcore", "grpc", "flwr")
_MOST_CHARACTERS = 4000
_MARGIN = "  | "


class LogFormat(StrEnum):
    """How a line of the log looks."""

    TEXT = "text"
    JSON = "json"


LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="Plain text, or one JSON object per line.")
]


class TextFormatter(logging.Formatter):
    """One line a record, whatever text it carries; the trace of an exception behind a margin.

    What the other side sent may be in any of them: see ``coinflower.protocol.foreign``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as text."""
        line = copy.copy(record)
        name = experiment_of(record)
        line.msg, line.args = f"{name}: " * bool(name) + message_of(record), None
        line.exc_info = line.exc_text = line.stack_info = None
        trace = (f"{_MARGIN}{part}" for part in trace_of(record))
        return "\n".join([super().format(line), *trace])


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the trace of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message_of(record),
        }
        if name := experiment_of(record):
            line["experiment"] = name
        if trace := trace_of(record):
            line["trace"] = "\n".join(trace)
        return json.dumps(line, ensure_ascii=False)


def experiment_of(record: logging.LogRecord) -> str:
    """Return the name of the experiment that a record is about; empty if it is about none."""
    return str(vars(record).get("experiment", ""))


def message_of(record: logging.LogRecord) -> str:
    """Return what a record says, as one printable line."""
    return printable(record.getMessage(), _MOST_CHARACTERS)


def trace_of(record: logging.LogRecord) -> list[str]:
    """Return the trace of a record's exception as printable lines, none without one."""
    text = record.exc_text or ""
    if record.exc_info:
        text = logging.Formatter().formatException(record.exc_info)
    return [printable(line, _MOST_CHARACTERS) for line in text.split("\n")] if text else []


def start_logging(form: LogFormat) -> None:
    """Send what this process logs to standard error, in that form."""
    handler = logging.StreamHandler()
    if form is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
