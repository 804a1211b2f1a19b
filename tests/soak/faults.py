"""What can go wrong with a machine: a fault is done to a world, and undone after a while."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Undo = Callable[[], None]
# Behind or ahead by more than a signature may be old, and by more than any message lives.
_JUMPS = (-86400, -3600, -30, 30, 3600, 86400)
_DISKS = (0, 5_000, 50_000)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A kind of fault.

    Attributes:
        name: For the table.
        server: Whether it hits the server, so that no round can be played meanwhile.
        seconds: Shortest and longest time until it is undone.
        inject: Does it; gets the world and a source of choices, returns what undoes it (None if
            there was nothing to hit) and which client machine was hit (None if the server was).
    """

    name: str
    server: bool
    seconds: tuple[float, float]
    inject: Callable[[Any, Any], tuple[Undo | None, int | None]]


class Clocks:
    """Clocks of the machines.

    Args:
        library: What ``clock.c`` was compiled to.
        folder: Where a file a machine says by how much its clock is wrong.
    """

    def __init__(self, library, folder):
        self._library = library
        self._folder = folder

    def environment(self, name):
        """What makes a process, and all below it, go by a machine's clock."""
        path = self._folder / f"{name}.clock"
        path.write_bytes(bytes(8))
        return {"LD_PRELOAD": str(self._library), "SOAK_CLOCK": str(path)}

    def set(self, name, seconds):
        """Move a clock that many seconds ahead of the true time."""
        with (self._folder / f"{name}.clock").open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))


def make_clocks(folder):
    """Return clocks that can be set, None where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return Clocks(library, folder)


def all_faults(clocks):
    """Return every kind that this machine can play; without ``clocks``, clocks stay right."""
    short, long = (2.0, 8.0), (4.0, 20.0)
    kinds = [
        ("client machine killed", False, (0.0, 0.0), _hit_machine(_kill)),
        ("client machine paused", False, long, _hit_machine(_pause)),
        ("client machine: files cannot grow", False, short, _hit_machine(_fill_disk)),
        ("client machine: network cut", False, long, _hit_wire("cut")),
        ("client machine: network silent", False, long, _hit_wire("mute")),
        ("server program killed", True, (0.0, 0.0), _hit_server(_kill, "server run")),
        ("SuperLink killed", True, (0.0, 0.0), _hit_server(_kill, "fenced_superlink")),
        ("ServerApp killed", True, (0.0, 0.0), _hit_server(_kill, "flwr-serverapp")),
        ("server paused", True, short, _hit_server(_pause, "")),
        ("server: files cannot grow", True, short, _hit_server(_fill_disk, "")),
        ("server: network cut", True, short, _hit_all_wires("cut")),
        ("server: network silent", True, short, _hit_all_wires("mute")),
    ]
    kinds += [
        ("notary killed", True, (0.0, 0.0), _hit_notary(_kill)),
        ("notary paused", True, short, _hit_notary(_pause)),
        ("notary: files cannot grow", True, short, _hit_notary(_fill_disk)),
        ("notary: network cut", True, short, _cut_notary),
    ]
    if clocks is not None:
        kinds += [
            ("notary: clock jumps", True, short, _turn_notary(clocks)),
            ("client machine: clock jumps", False, long, _turn_machine(clocks)),
            ("server: clock jumps", True, short, _turn_server(clocks)),
        ]
    return [
        Fault(name=name, server=server, seconds=seconds, inject=inject)
        for name, server, seconds, inject in kinds
    ]


def _hit_machine(hit):
    def inject(world, choose):
        machine = choose.randrange(len(world.machines))
        return hit(world.machines[machine].pids, choose), machine

    return inject


def _hit_server(hit, name):
    def inject(world, choose):
        # A guard bears the name of what it guards, and is not what is meant.
        def find():
            guards = set(world.server.pids("guard.py")) if name else set()
            return [pid for pid in world.server.pids(name) if pid not in guards]

        return hit(find, choose), None

    return inject


def _hit_notary(hit):
    """Hit the notary, where there is one; meanwhile no round is opened."""

    def inject(world, choose):
        return (None if world.notary is None else hit(world.notary.pids, choose)), None

    return inject


def _cut_notary(world, _):
    if world.notary is None:
        return None, None
    world.notary_wire.cut()
    return world.notary_wire.mend, None


def _turn_notary(clocks):
    def inject(world, choose):
        if world.notary is None:
            return None, None
        clocks.set("notary", choose.choice(_JUMPS))
        return lambda: clocks.set("notary", 0), None

    return inject


def _hit_wire(what):
    def inject(world, choose):
        machine = choose.randrange(len(world.wires))
        wire = world.wires[machine]
        getattr(wire, what)()
        return wire.mend, machine

    return inject


def _hit_all_wires(what):
    def inject(world, _):
        for wire in world.all_wires:
            getattr(wire, what)()
        return lambda: [wire.mend() for wire in world.all_wires], None

    return inject


def _turn_machine(clocks):
    def inject(world, choose):
        machine = choose.randrange(len(world.machines))
        clocks.set(f"machine-{machine}", choose.choice(_JUMPS))
        return lambda: clocks.set(f"machine-{machine}", 0), machine

    return inject


def _turn_server(clocks):
    def inject(_, choose):
        clocks.set("server", choose.choice(_JUMPS))
        return lambda: clocks.set("server", 0), None

    return inject


def _signal(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill(find, _):
    pids = find()
    _signal(pids, signal.SIGKILL)
    return (lambda: None) if pids else None


def _pause(find, _):
    pids = find()
    _signal(pids, signal.SIGSTOP)
    return (lambda: _signal(pids, signal.SIGCONT)) if pids else None


def _fill_disk(find, choose):
    """Let no file grow beyond a size: what is there stays, and a write may be cut in two."""
    pids = find()
    _limit_files(pids, choose.choice(_DISKS))
    # Processes that were born meanwhile have inherited the limit.
    return (lambda: _limit_files({*pids, *find()}, resource.RLIM_INFINITY)) if pids else None


def _limit_files(pids, size):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
