"""Coverage-guided fuzzing: ``PYTHONPATH=. python tests/fuzz/fuzz_run.py TARGET [options]``.

Options are those of libFuzzer. Give ``-runs=N`` or ``-max_total_time=SECONDS``. What is found is
written to ``crash-…`` or ``timeout-…`` in the present folder; give that file as an argument to play
it again. A folder as an argument keeps the inputs that reached something new.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

TARGETS = {
    "texts": ("tests.fuzz.fuzz_texts", "Texts"),
    "files": ("tests.fuzz.fuzz_files", "Files"),
    "client": ("tests.fuzz.fuzz_client", "Client"),
    "server": ("tests.fuzz.fuzz_server", "Server"),
    "notary": ("tests.fuzz.fuzz_notary", "Notary"),
}
_FOLDER = "COINFLOWER_FUZZ_FOLDER"
_OURS = ["coinflower", "tomllib", "json"]


def main() -> None:
    """Fuzz one target until libFuzzer has had enough."""
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=_OURS):
        module, kind = TARGETS[name]
        target_class = getattr(importlib.import_module(module), kind)
    logging.disable(logging.CRITICAL)  # thousands of refusals, each with its reason
    warnings.simplefilter("ignore")
    folder = Path(os.environ[_FOLDER])
    work, seeds = folder / "work", folder / "seeds"
    work.mkdir()
    seeds.mkdir()
    target = target_class(work)
    for index, seed in enumerate(target.seeds):
        (seeds / str(index)).write_bytes(seed)
    defaults = ["-timeout=60", "-rss_limit_mb=4096", "-print_final_stats=1", "-max_len=4096"]
    atheris.Setup([sys.argv[0], *defaults, *options, str(seeds)], target)
    ctypes.CDLL(None).on_exit(_leave, None)
    atheris.Fuzz()


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)
def _leave(status: int, _: object) -> None:
    """Leave at once: libFuzzer ends the process with Python's lock held.

    Libraries stop their threads at the end, and one of these may wait for that lock for ever.
    """
    os._exit(status)


def main_with_folder() -> int:
    """Fuzz in a process of its own, which libFuzzer ends as it likes, and clean up after it."""
    memory = Path("/dev/shm")  # ledgers sync every commit, which a disk takes its time for
    where = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=where) as folder:
        env = {**os.environ, _FOLDER: folder}
        return subprocess.run([sys.executable, *sys.argv], env=env, check=False).returncode


if __name__ == "__main__":
    if _FOLDER in os.environ:
        main()
    else:
        sys.exit(main_with_folder())
