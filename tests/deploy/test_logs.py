"""Logs for people and for machines."""

import json
import logging

import pytest

from deploy.logs import LogFormat, start_logging


@pytest.fixture
def log():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield logging.getLogger("coinflower.test")
    root.handlers[:] = handlers
    root.setLevel(level)


def test_every_line_is_one_json_object(log, capsys):
    start_logging(LogFormat.JSON)
    log.info("Round %d, ε stays\nwith clients", 3)
    try:
        raise KeyError("lost")
    except KeyError:
        log.exception("It failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["level"] == "info"
    assert first["logger"] == "coinflower.test"
    assert first["message"] == "Round 3, ε stays\nwith clients"
    assert first["time"].endswith("+00:00")
    assert "KeyError" in second["trace"]


def test_text_is_a_line_for_people(log, capsys):
    start_logging(LogFormat.TEXT)
    log.warning("Careful")
    assert capsys.readouterr().err.endswith("WARNING Careful\n")


def test_libraries_are_quiet(log, capsys):
    start_logging(LogFormat.JSON)
    logging.getLogger("httpx").info("GET /")
    assert capsys.readouterr().err == ""
