"""The measurement of both engines: whose memory counts."""

import os
import subprocess
import sys

from tools.compare_simulators import _descendants, _memory


def test_the_memory_of_a_command_is_that_of_all_processes_below_it():
    # The last process names itself, so every one of them is past its exec (in the middle of one a
    # process has no memory to count).
    last = [sys.executable, "-c", "import os; print(os.getpid(), flush=True); input()"]
    middle = [sys.executable, "-c", f"import subprocess; subprocess.run({last!r})"]
    first = [sys.executable, "-c", f"import subprocess; subprocess.run({middle!r})"]
    with subprocess.Popen(
        first, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        grandchild = int(running.stdout.readline())
        try:
            below = list(_descendants(running.pid))
            assert below[0] == running.pid
            assert grandchild in below
            assert os.getpid() not in below
            assert all(_memory(pid) > 0 for pid in below)
        finally:
            for pid in below:  # from the top: whoever waits for another ends with it
                os.kill(pid, 9)
    assert _memory(running.pid) == 0
    assert list(_descendants(running.pid)) == [running.pid]
