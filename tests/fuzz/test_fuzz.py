"""Everything that is parsed from the other side, under more than 10⁵ coverage-guided inputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coinflower.client import participant
from coinflower.notary.record import Record
from coinflower.protocol.modes import Mode
from tests.fuzz.fuzz_client import MODES, Client
from tests.fuzz.fuzz_notary import Notary

pytest.importorskip("atheris", reason="atheris has no wheel for this platform")

HERE = Path(__file__).parent
RUNS = {"texts": 80_000, "files": 10_000, "client": 8_000, "server": 10_000, "notary": 5_000}


def fuzz(target: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "fuzz_run.py"), target, "-seed=1", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("target", RUNS)
def test_no_input_breaks_what_was_promised(target: str, tmp_path: Path) -> None:
    done = fuzz(target, tmp_path, f"-runs={RUNS[target]}")
    assert done.returncode == 0, done.stderr[-3000:]
    executed = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    assert executed is not None
    assert int(executed[1]) >= RUNS[target]


def test_the_inputs_of_one_run_add_up_to_a_hundred_thousand() -> None:
    assert sum(RUNS.values()) >= 100_000


def test_a_client_that_forgets_its_noise_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participant, "make_noisy", lambda *_: None)
    target = Client(tmp_path)
    asked_in_untrusted_mode = target.seeds[MODES.index(Mode.UNTRUSTED)]
    with pytest.raises(AssertionError, match="without its noise"):
        target(asked_in_untrusted_mode)


def test_a_notary_that_forgets_what_it_opened_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Notary(tmp_path)
    target(target.seeds[0])
    monkeypatch.setattr(Record, "note_opening", lambda *_, **__: None)
    with pytest.raises(AssertionError, match="opened"):
        target(target.seeds[0])


def test_the_fuzzer_notices_a_promise_that_is_broken(tmp_path: Path) -> None:
    """A parser that lets another error through, planted in a copy of the text target."""
    copy = tmp_path / "tests" / "fuzz"
    copy.mkdir(parents=True)
    (copy / "fuzz_texts.py").write_text(
        "class Texts:\n"
        "    seeds = [b'ab']\n"
        "    def __init__(self, folder): pass\n"
        "    def __call__(self, data):\n"
        "        if data[:1] == b'a': raise KeyError('not declared')\n"
    )
    (copy / "fuzz_run.py").write_text((HERE / "fuzz_run.py").read_text())
    done = subprocess.run(
        [sys.executable, str(copy / "fuzz_run.py"), "texts", "-runs=1000"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "not declared" in done.stdout + done.stderr
