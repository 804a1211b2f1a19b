"""A client whose ledger lies on a volume that is read-only or full: real, small file systems."""

import contextlib
import os
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest

from coinflower.accounting.ledger.errors import LedgerError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.cli import main as cli
from coinflower.cli.machines import client as cli_client
from coinflower.client.participant import Participant
from coinflower.protocol.terms import Terms
from tests.support.documents import blocks

TERMS = replace(Terms.from_fields(tomllib.loads(blocks()["settings.toml"])["terms"]), rounds=20)


class Volume:
    """A small file system with a ledger on it, and a policy beside it."""

    def __init__(self, folder):
        self.folder = folder / "volume"
        self.policy = folder / "policy.toml"
        self.folder.mkdir()
        self._mount("-t", "tmpfs", "-o", "size=256k", "tmpfs")
        text = blocks()["policy.toml"].replace("ledger.db", f"{self.folder}/ledger.db")
        self.policy.write_text(text)
        Ledger.create(self.folder / "ledger.db", "ward-7").close()

    def _mount(self, *options):
        done = subprocess.run(
            ["mount", *options, self.folder], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"cannot mount: {done.stderr.strip()}")

    def make_read_only(self):
        self._mount("-o", "remount,ro")

    def fill(self):
        with contextlib.suppress(OSError), (self.folder / "filler").open("wb", 0) as file:
            while True:
                file.write(bytes(512))

    def empty(self):
        (self.folder / "filler").unlink()

    def charged(self):
        with Ledger.open(self.folder / "ledger.db", read_only=True) as ledger:
            return [entry.round for entry in ledger.history() if entry.kind == "charge"]


@pytest.fixture
def volume(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root: only root may mount a volume")
    made = Volume(tmp_path)
    yield made
    subprocess.run(["umount", made.folder], check=True)


@pytest.fixture
def join(volume, monkeypatch, capsys):
    """Return a function that tries to join and gives what was said."""
    monkeypatch.setattr(cli_client, "start_logging", lambda _: None)
    monkeypatch.setattr(
        sys, "argv", ["coinflower", "client", str(volume.policy), "--superlink", "a:1"]
    )

    def run():
        with pytest.raises(SystemExit, match="2"):
            cli.main()
        (sentence,) = capsys.readouterr().err.strip().split("\n\n")
        return sentence.replace("\n", " ")

    return run


def test_a_read_only_volume_is_named_before_joining(volume, join):
    volume.make_read_only()
    assert "is read-only, so nothing could be charged to the ledger ledger.db" in join()
    assert volume.charged() == []


def test_a_full_volume_is_named_before_joining(volume, join):
    volume.fill()
    assert "the disk is full; free some space. Nothing was charged." in join()
    volume.empty()
    assert volume.charged() == []


def test_a_volume_that_fills_up_in_mid_run_flips_no_coin_and_loses_none(volume):
    client = Participant.open(volume.policy)
    client.enrol(TERMS)
    first = client.flip(TERMS, range(1, 6))
    volume.fill()
    with pytest.raises(LedgerError, match="the disk is full; free some space"):
        client.flip(TERMS, range(6, 21))
    volume.empty()
    assert client.flip(TERMS, range(1, 6)) == first
    client.flip(TERMS, range(6, 21))
    client.ledger.close()
    assert volume.charged() == list(range(1, 21))
