"""What the ServerApp's process logs is logged again by the one that serves."""

import json
import logging
import os
import subprocess
import sys

import pytest

from coinflower.deploy.machines.server_log import VARIABLE, Relay

PROCESS = """
import logging
from coinflower.deploy.machines.server_log import write_records
write_records()
logging.getLogger("coinflower.server").info("Client %d enrolled.", 3)
logging.getLogger("coinflower.server").debug("Nobody asked.")
logging.getLogger("elsewhere").warning("Not ours.")
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.jsonl"


def run_process(path):
    subprocess.run(
        [sys.executable, "-c", PROCESS], env={**os.environ, VARIABLE: str(path)}, check=True
    )


def test_what_another_process_logs_is_told_once_with_its_level(path, caplog):
    relay = Relay(path)
    relay.tell()
    run_process(path)
    relay.tell()
    relay.tell()
    assert caplog.record_tuples == [("coinflower.server", logging.INFO, "Client 3 enrolled.")]


def test_what_an_earlier_process_logged_is_not_told_again(path, caplog):
    run_process(path)
    Relay(path).tell()
    assert caplog.record_tuples == []


def test_a_line_that_is_just_being_written_is_told_when_it_is_whole(path, caplog):
    relay = Relay(path)
    line = json.dumps({"name": "coinflower.server", "levelno": logging.WARNING, "msg": "Careful"})
    path.write_text(line[:20])
    relay.tell()
    assert caplog.messages == []
    path.write_text(f"{line}\n")
    relay.tell()
    assert caplog.messages == ["Careful"]


def test_a_line_that_a_full_disk_cut_is_left_out(path, caplog):
    relay = Relay(path)
    line = json.dumps({"name": "coinflower.server", "levelno": logging.WARNING, "msg": "Careful"})
    path.write_text(f"{line[:20]}\n{line}\n")
    relay.tell()
    assert caplog.messages == ["Careful"]


def test_without_a_file_to_write_to_nothing_is_kept(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    subprocess.run([sys.executable, "-c", PROCESS], env=environment, check=True)
    assert list(tmp_path.iterdir()) == []
