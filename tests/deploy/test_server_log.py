"""What the ServerApp's process logs is logged again by the one that serves."""

import json
import logging
import subprocess
import sys

import pytest

from coinflower.deploy.machines.server_log import Relay

PROCESS = """
import logging, sys
from pathlib import Path
from coinflower.deploy.machines.server_log import write_records
write_records(Path(sys.argv[1]))
logging.getLogger("coinflower.server").info("Client %d enrolled.", 3)
logging.getLogger("coinflower.server").debug("Nobody asked.")
logging.getLogger("elsewhere").warning("Not ours.")
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records.jsonl"


def run_process(path):
    subprocess.run([sys.executable, "-c", PROCESS, path], check=True)


def test_what_another_process_logs_is_told_once_with_its_level(path, caplog):
    relay = Relay(path, "trial")
    relay.tell()
    run_process(path)
    relay.tell()
    relay.tell()
    assert caplog.record_tuples == [("coinflower.server", logging.INFO, "Client 3 enrolled.")]
    assert caplog.records[0].experiment == "trial"


def test_what_an_earlier_process_logged_is_not_told_again(path, caplog):
    run_process(path)
    Relay(path, "trial").tell()
    assert caplog.record_tuples == []


def test_a_line_that_is_just_being_written_is_told_when_it_is_whole(path, caplog):
    relay = Relay(path, "trial")
    line = json.dumps({"name": "coinflower.server", "levelno": logging.WARNING, "msg": "Careful"})
    path.write_text(line[:20])
    relay.tell()
    assert caplog.messages == []
    path.write_text(f"{line}\n")
    relay.tell()
    assert caplog.messages == ["Careful"]


def test_a_line_that_a_full_disk_cut_is_left_out(path, caplog):
    relay = Relay(path, "trial")
    line = json.dumps({"name": "coinflower.server", "levelno": logging.WARNING, "msg": "Careful"})
    path.write_text(f"{line[:20]}\n{line}\n")
    relay.tell()
    assert caplog.messages == ["Careful"]
