"""What others on the machine get of a real process: no core, no token, no command to a terminal."""

import contextlib
import http.server
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.deploy.flower.loopback import LOOPBACK, free_port
from tests.support.builders import policy_text
from tests.support.waiting import PATIENCE, wait_until

COINFLOWER = Path(sys.executable).parent / "coinflower"
POLICY = policy_text(modes=["quiet"], budget={"epsilon": 30.0, "delta": 1e-3})
SUPERLINK = "coinflower.deploy.flower.fenced_superlink"
FORGED = "2026-01-01 00:00:00,000 INFO Joined the SuperLink: all is well"
HOSTILE = f"no\n{FORGED}\r\n\x1b[2J\x1b]0;owned\x07\x9b31m\u202e{'x' * 5000}"


@pytest.fixture
def folder(tmp_path):
    Ledger.create(tmp_path / "ledger.db", "ward 7").close()
    (tmp_path / "policy.toml").write_text(POLICY)
    return tmp_path


def allow_cores():
    """Let the process dump cores, as a careless machine does."""
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextlib.contextmanager
def started(folder, *words, before=(), **options):
    """Run the program with all its output in a file."""
    with (folder / "output").open("wb") as file:
        process = subprocess.Popen(
            [*before, COINFLOWER, *map(str, words)],
            **{"stdout": file, "stderr": subprocess.STDOUT, "cwd": folder, **options},
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()


def client(port, *more):
    address = f"{LOOPBACK}:{port}"
    return ("client", "policy.toml", "--superlink", address, "--insecure", *more)


def wait_for(found, process):
    """Return once there is what is looked for, while the process lives."""
    wait_until(found, alive=lambda: process.poll() is None)


def output(folder):
    return (folder / "output").read_text(errors="surrogateescape")


def core_limits(pid):
    return re.search(r"Max core file size +(\S+) +(\S+)", Path(f"/proc/{pid}/limits").read_text())


def ordinary():
    """Return what starts a program without root's rights, if this is root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, to be without root's rights")
    return ["setpriv", "--inh-caps=-all", "--bounding-set=-all"]


def is_readable(pid):
    """Return whether another ordinary process of the same user sees inside a process."""
    look = [*ordinary(), sys.executable, "-c", f"open('/proc/{pid}/environ', 'rb').read()"]
    done = subprocess.run(look, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "PermissionError" in done.stderr, done.stderr
    return done.returncode == 0


def test_a_client_dumps_no_core_and_shows_nobody_its_memory(folder):
    words = client(free_port(LOOPBACK))
    with started(folder, *words, before=ordinary(), preexec_fn=allow_cores) as process:
        wait_for(lambda: "cannot be reached" in output(folder), process)
        assert core_limits(process.pid).groups() == ("0", "0")
        assert not is_readable(process.pid)
    with subprocess.Popen(
        [*ordinary(), "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as cat:
        cat.stdin.write(b"ready\n")
        cat.stdin.flush()
        assert cat.stdout.readline() == b"ready\n"
        assert is_readable(cat.pid), "this look would find nothing anyway"


def test_a_server_and_what_it_starts_dump_no_core_and_show_nobody_the_sums(folder):
    settings = """
state = "state"
test_data = "digits"
[terms]
experiment = "trial-1"
mode = "quiet"
p = 0.5
q = 0.1
clip_norm = 1.0
noise_multiplier = 1.5
rounds = 4
model = "digits"
classes = 10
"""
    (folder / "settings.toml").write_text(settings)
    port = free_port(LOOPBACK)
    words = ("server", "run", "settings.toml", "--port", port, "--drain-seconds", 1)
    with started(folder, *words, before=ordinary(), preexec_fn=allow_cores) as process:
        wait_for(lambda: "waiting for clients" in output(folder), process)
        all_of_it = [process.pid, *descendants(process.pid)]
        superlinks = []
        for pid in all_of_it:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it just ended
                assert core_limits(pid).groups() == ("0", "0")
                superlinks += [pid] * (runs(pid, SUPERLINK) and not is_guard(pid))
        (superlink,) = superlinks
        assert not is_readable(process.pid)
        assert not is_readable(superlink)  # which keeps what clients send


def runs(pid, program):
    return program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def is_guard(pid):
    return b"guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def descendants(pid):
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # what ends has none
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_pages_token_is_in_no_output_and_for_the_owner_only(folder, form):
    words = client(free_port(LOOPBACK), "--page", "127.0.0.1:0", "--log-format", form)
    link = folder / "ledger.db.page"
    with started(folder, *words, umask=0) as process:
        wait_for(lambda: str(link) in output(folder), process)
        assert link.stat().st_mode & 0o777 == 0o600
        url = link.read_text().strip()
        token = url.partition("token=")[2]
        assert len(token) > 30
        with httpx.Client(timeout=60, follow_redirects=True) as browser:
            assert "ward 7" in browser.get(url).text
            browser.get(url.replace("/?", "/nowhere?"))
            assert browser.post(url, data={"token": token}).status_code == 403
            address = httpx.URL(url)
            for path in (f"/?token={token}", f"/{token}", f"/?token={token}\x01 \xff"):
                with socket.create_connection((address.host, address.port), timeout=60) as raw:
                    raw.sendall(f"GET {path} HTTP/9.9\r\n\r\n".encode("latin-1"))
                    raw.recv(1000)
        assert token.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert process.returncode == 0
    assert not link.exists()
    assert token not in output(folder)


def test_a_link_that_somebody_put_there_is_not_followed(folder):
    (folder / "theirs").write_text("")
    (folder / "ledger.db.page").symlink_to(folder / "theirs")
    with started(folder, *client(free_port(LOOPBACK), "--page", "127.0.0.1:0")) as process:
        wait_for(lambda: "ledger.db.page" in output(folder), process)
        assert not (folder / "ledger.db.page").is_symlink()
    assert (folder / "theirs").read_text() == ""


def test_a_terminal_shows_the_link_and_no_file_has_it(folder):
    master, slave = os.openpty()
    words = ("ledger", "page", "ledger.db")
    with started(folder, *words, stdout=slave):
        os.close(slave)
        told = b""
        while b"\n" not in told:
            told += os.read(master, 1000)
        assert re.search(rb"http://127\.0\.0\.1:\d+/\?token=\S{30}", told)
        assert not (folder / "ledger.db.page").exists()
    os.close(master)


class LyingServer(http.server.BaseHTTPRequestHandler):
    """Answers everything with an error whose text forges a log and commands a terminal."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps({"code": 1, "detail": HOSTILE}).encode()
        self.send_response(400)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_lying_server_writes_no_line_into_a_clients_log(folder, form):
    with http.server.ThreadingHTTPServer((LOOPBACK, 0), LyingServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = client(server.server_address[1], "--log-format", form)
        with started(folder, *words) as process:
            wait_for(lambda: "does not accept this node" in output(folder), process)
        server.shutdown()
    lines = output(folder).splitlines()
    (line,) = (line for line in lines if "does not accept" in line)
    assert len(line) < 1000
    for line in lines:
        assert line.isprintable()
        assert not line.startswith(FORGED)
        if form == "json":
            message = json.loads(line)["message"]
            assert message.isprintable()
            assert not message.startswith(FORGED)
