"""Logs for people and for machines."""

import json
import logging

import pytest

from coinflower.deploy.machines.logs import LogFormat, start_logging


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
    assert first["message"] == "Round 3, ε stays\\nwith clients"
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


FORGED = "2026-01-01 00:00:00,000 INFO Round 7 done"


@pytest.mark.parametrize("form", LogFormat)
def test_no_text_in_a_record_forges_a_line_or_commands_a_terminal(log, capsys, form):
    start_logging(form)
    hostile = f"\x1b[2J\n{FORGED}\r\x9b31m\u202e"
    log.warning("It says %s", hostile)
    try:
        raise ValueError(hostile)
    except ValueError:
        log.exception("It failed: %s", hostile)
    log.info("long %s", "x" * 100_000)
    lines = capsys.readouterr().err.split("\n")[:-1]
    assert not [line for line in lines if line.startswith(FORGED)]
    for line in lines:
        assert line.isprintable()
        assert len(line) < 10_000
        if form is LogFormat.JSON:
            told = json.loads(line)
            assert told["message"].isprintable()
            assert all(part.isprintable() for part in told.get("trace", "").split("\n"))


def test_the_trace_of_an_exception_stands_behind_a_margin(log, capsys):
    start_logging(LogFormat.TEXT)
    try:
        raise ValueError(f"first\n{FORGED}")
    except ValueError:
        log.exception("It failed")
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.endswith("ERROR It failed")
    assert any("Traceback" in line for line in rest)
    assert all(line.startswith("  | ") for line in rest)
