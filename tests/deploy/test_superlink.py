"""Real SuperLinks, and what is left of them afterwards: nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from coinflower.deploy.flower.guard import start_guarded, stop_guarded
from coinflower.deploy.flower.run_app import write_app
from coinflower.deploy.flower.superlink import Superlink, SuperlinkError
from tests.support.waiting import PATIENCE, wait_until

SERVER = """
import json, time
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    what = context.run_config["what"]
    if what == "fail":
        print("about to fail")
        raise RuntimeError("no model today")
    with open(context.run_config["out"], "w") as file:
        json.dump(dict(context.run_config), file)
    if what == "sleep":
        time.sleep(600)
"""


def toy(directory: Path, **config: int | float | bool | str) -> Path:
    config = {"out": str(directory.parent / f"{directory.name}.json")} | config
    app = write_app(
        directory, serverapp="toy_server:app", clientapp="coinflower.client.app:app", config=config
    )
    (app / "toy_server.py").write_text(SERVER)
    return app


def processes_of(directory: Path) -> list[int]:
    """Processes whose environment names the directory, as everything below a SuperLink's does."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(directory).encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Superlink]:
    directory = tmp_path_factory.mktemp("superlink")
    with Superlink(directory) as superlink:
        assert len(processes_of(directory)) >= 2
        yield superlink
    assert processes_of(directory) == []


def test_a_run_gets_its_config_and_completes(superlink: Superlink, tmp_path: Path) -> None:
    config = {"what": "echo", "rounds": 3, "sigma": 0.5, "resume": False}
    run_id = superlink.start_run(toy(tmp_path / "app", **config))
    status = superlink.wait(run_id, timeout=PATIENCE)
    assert (status.completed, status.details) == (True, "")
    found = json.loads((tmp_path / "app.json").read_text())
    assert {key: found[key] for key in config} == config


def test_a_run_that_fails_says_why(superlink: Superlink, tmp_path: Path) -> None:
    run_id = superlink.start_run(toy(tmp_path / "app", what="fail"))
    status = superlink.wait(run_id, timeout=PATIENCE)
    assert (status.finished, status.completed, status.outcome) == (True, False, "failed")
    assert "no model today" in status.details
    wait_until(lambda: "about to fail" in superlink.run_log(run_id, lines=100))


def test_a_run_is_stopped(superlink: Superlink, tmp_path: Path) -> None:
    run_id = superlink.start_run(toy(tmp_path / "app", what="sleep"))
    wait_until((tmp_path / "app.json").exists)
    assert superlink.status(run_id).state == "running"
    superlink.stop_run(run_id)
    assert superlink.wait(run_id, timeout=PATIENCE).outcome == "stopped"


def test_an_unknown_run_is_refused_in_a_sentence(superlink: Superlink) -> None:
    with pytest.raises(SuperlinkError, match="The SuperLink refused: "):
        superlink.status(12345)


def test_a_port_in_use_is_named(superlink: Superlink, tmp_path: Path) -> None:
    with pytest.raises(SuperlinkError, match=f"Port {superlink.port} on 127.0.0.1 is in use"):
        Superlink(tmp_path, port=superlink.port).start()


def test_plain_http_stays_on_loopback(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs tls"):
        Superlink(tmp_path, host="0.0.0.0")


def test_the_app_is_tiny_because_the_code_is_installed(tmp_path: Path) -> None:
    app = write_app(
        tmp_path / "app",
        serverapp="coinflower.server.app:app",
        clientapp="coinflower.client.app:app",
        config={"p": 0.5},
    )
    assert len(build_fab_from_disk(app)) < 2000


def test_a_superlink_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    broken = Superlink(tmp_path)
    broken._command = lambda: [sys.executable, "-c", "print('out of memory'); exit(3)"]  # type: ignore[method-assign]
    with pytest.raises(SuperlinkError, match=r"did not start.*\n.*out of memory"):
        broken.start()


def test_an_exception_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Superlink(tmp_path):
        raise KeyError
    assert processes_of(tmp_path) == []


PARENT = """
import sys, time
from pathlib import Path
from coinflower.deploy.flower.superlink import Superlink
with Superlink(Path(sys.argv[1])) as superlink:
    superlink.start_run(Path(sys.argv[2]))
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_owner_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    state = tmp_path / "state"
    state.mkdir()
    app = toy(tmp_path / "app", what="sleep")
    owner = subprocess.Popen([sys.executable, "-c", PARENT, str(state), str(app)])
    try:
        wait_until((tmp_path / "app.json").exists)
        assert len(processes_of(state)) >= 4
    finally:
        os.kill(owner.pid, number)
        owner.wait()
    wait_until(lambda: processes_of(state) == [])


DETACHING = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1], "w").close()
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("seconds", [0.0, 600.0])
def test_a_guard_ends_even_what_was_detached(tmp_path: Path, seconds: float) -> None:
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", DETACHING, str(ready), str(seconds)]
    guard = start_guarded(command, env=os.environ | {"MARK": str(tmp_path)})
    wait_until(ready.exists)
    stop_guarded(guard)
    assert processes_of(tmp_path) == []


def test_a_port_that_was_found_free_stays_free_for_who_found_it(tmp_path: Path) -> None:
    """Half of all ports are handed out meanwhile: without care, five of them last 1 time in 30."""
    superlinks = [Superlink(tmp_path) for _ in range(5)]
    taken = set()
    for _ in range(10_000):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            taken.add(probe.getsockname()[1])
    assert len(taken) > 2000
    assert not taken & {superlink.port for superlink in superlinks}
    for superlink in superlinks:
        with socket.create_server(("127.0.0.1", superlink.port)):
            assert superlink.address == f"127.0.0.1:{superlink.port}"
