"""A process that never outlives its owner, and neither does anything it starts.

Flower's SuperLink and SuperNode start helpers of their own (``flower-superexec``, which starts
``flwr-serverapp`` or ``flwr-clientapp``) and put them in sessions of their own, so that killing a
process group does not reach them. A guard is a small Python process between the owner and such a
command. It is the *subreaper* of everything below it, hence no descendant can escape by being
orphaned, and it ends the whole tree when the command ends, when it is told to (SIGTERM), or when
its owner is gone for whatever reason, SIGKILL included.

The owner's death is seen twice: the pipe on standard input closes, and the parent changes. The
kernel's parent-death signal would not do: it fires when the *thread* that started the process ends.

This file runs on the standard library alone, without site-packages, to start in some 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 2.0
_PARENT_CHECK_SECONDS = 0.5


def start_guarded(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    log: IO[bytes] | int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start a command that dies, with everything it starts, when this process dies.

    Args:
        command: Program and arguments.
        env: Environment of the command; this process's own if None.
        log: Where standard output and error go.

    Returns:
        The guard. ``stop_guarded`` ends it; its return code is the command's.
    """
    # A session of its own keeps the terminal's Ctrl-C from the command: the owner decides.
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=None if env is None else dict(env),
        start_new_session=True,
    )


def stop_guarded(guard: subprocess.Popen[bytes]) -> int:
    """End a guarded command and everything it started, and wait until all of it is gone."""
    if guard.stdin is not None:
        with contextlib.suppress(OSError):
            guard.stdin.close()
    return guard.wait()


def _prctl(option: int, value: int) -> None:
    # Only Linux knows these; elsewhere the pipe and the tree walk still do their work.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _children() -> dict[int, list[int]]:
    """Return the children of every process of this machine."""
    children: dict[int, list[int]] = {}
    if Path("/proc/self/stat").exists():
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    # The command name, in parentheses, may itself hold spaces and parentheses.
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
    else:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=False)
        for line in listing.stdout.splitlines():
            pid, parent = map(int, line.split())
            children.setdefault(parent, []).append(pid)
    return children


def _descendants(root: int) -> list[int]:
    children = _children()
    found: list[int] = []
    frontier = [root]
    while frontier:
        frontier = [child for pid in frontier for child in children.get(pid, [])]
        found.extend(frontier)
    return found


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass


def _end_tree(command: subprocess.Popen[bytes]) -> None:
    if command.poll() is None:
        command.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(_GRACE_SECONDS)
    # Orphans become children of this process, so a few passes reach whatever is still being born.
    while pids := _descendants(os.getpid()):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        command.poll()
        _reap()


def _guard(owner: int, argv: Sequence[str]) -> int:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    told_to_stop, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    command = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        # Should the guard itself be killed, the command goes with it.
        preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
    )
    try:
        while command.poll() is None and os.getppid() == owner:
            ready, _, _ = select.select([0, told_to_stop], [], [], _PARENT_CHECK_SECONDS)
            if 0 in ready and not os.read(0, 64):
                break
            if told_to_stop in ready and set(os.read(told_to_stop, 64)) - {signal.SIGCHLD}:
                break
    finally:
        _end_tree(command)
    return command.returncode


def _main() -> NoReturn:
    code = _guard(int(sys.argv[1]), sys.argv[2:])
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    _main()
