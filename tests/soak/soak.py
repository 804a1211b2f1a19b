"""A federation of many nodes under random faults for a while, and whether its promises held.

Run as ``make soak SECONDS=120``; the time counts from the first round on. Only the schedule of
faults is seeded; coins, samples and noise are as secret as ever.
"""

import argparse
import dataclasses
import heapq
import itertools
import json
import random
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from faults import all_faults, make_clocks
from federations import plan, processes
from invariants import check
from rich.console import Console
from rich.table import Table
from world import World

from protocol.terms import Mode

GOES_ON = "rounds are played again after every fault"
NOTHING_LEFT = "no process is left"
_TICK_SECONDS = 0.1
_GAP_SECONDS = 4.0
_CALM_SECONDS = 45.0
_PATIENCE_SECONDS = 300.0
_END_SECONDS = 30.0
_MANY_ROUNDS = 5000


@dataclasses.dataclass(kw_only=True)
class Injection:
    """A fault that was injected.

    Attributes:
        name: Which one.
        over: Rounds played when it was undone; None while it lasts.
    """

    name: str
    over: int | None = None


class Schedule:
    """Draws faults, one after the other from a shuffled deck, with random gaps between them.

    Args:
        faults: The deck.
        seed: Of order, gaps, durations and victims.
    """

    def __init__(self, faults, seed):
        self._faults = faults
        self._deck = []
        self.choose = random.Random(seed)
        self._next_at = 0.0

    def due(self, now):
        """Return the next fault if its time has come."""
        if not self._faults or now < self._next_at:
            return None
        if not self._deck:
            self._deck = self.choose.sample(self._faults, len(self._faults))
        self._next_at = now + self.choose.expovariate(1 / _GAP_SECONDS)
        return self._deck.pop()


class Soak:
    """Plays faults on a world and keeps count.

    Faults of clients overlap with anything. One that hits the server waits until rounds have been
    played since the one before, so that each is seen to be survived.
    """

    def __init__(self, world, faults, seed):
        self._world = world
        self._clients = Schedule([fault for fault in faults if not fault.server], f"{seed} clients")
        self._server = Schedule([fault for fault in faults if fault.server], f"{seed} server")
        self._undos = []
        self._numbers = itertools.count()
        self._server_fault = None
        self._started = time.monotonic()
        self.injections = []

    def play(self, seconds):
        """Inject faults for a while."""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                self._turn()
                self._inject_due(self._clients)
                if self._recovered():
                    self._server_fault = self._inject_due(self._server) or self._server_fault
                time.sleep(_TICK_SECONDS)
        finally:
            self._undo(float("inf"))

    def calm(self, seconds):
        """Leave the world alone for a while, and longer, within bounds, until it plays a round."""
        start = self._world.rounds()
        began = time.monotonic()
        while (waited := time.monotonic() - began) < _PATIENCE_SECONDS:
            if waited > seconds and not self._undos and self._world.rounds() > start:
                return
            if self._turn():
                start = self._world.rounds()
            time.sleep(_TICK_SECONDS)

    def _turn(self):
        """Undo what is due and start what has ended; says whether anything was undone."""
        self._world.supervise()
        return self._undo(time.monotonic())

    def _recovered(self):
        last = self._server_fault
        return last is None or (last.over is not None and self._world.rounds() > last.over)

    def _inject_due(self, schedule):
        fault = schedule.due(time.monotonic())
        return None if fault is None else self.inject(fault, schedule.choose)

    def inject(self, fault, choose):
        """Inject a fault that is undone in due time; returns None if there was nothing to hit."""
        undo = fault.inject(self._world, choose)
        if undo is None:
            return None
        injection = Injection(name=fault.name)
        self.injections.append(injection)
        seconds, rounds = time.monotonic() - self._started, self._world.rounds()
        print(f"{seconds:5.0f} s, {rounds} rounds: {fault.name}", file=sys.stderr)
        until = time.monotonic() + choose.uniform(*fault.seconds)
        heapq.heappush(self._undos, (until, next(self._numbers), undo, injection))
        return injection

    def _undo(self, now):
        undone = False
        while self._undos and self._undos[0][0] <= now:
            _, _, undo, injection = heapq.heappop(self._undos)
            undo()
            injection.over = self._world.rounds()
            undone = True
        return undone


def run(seconds, clients, machines, modes, seed, folder):
    """Soak for a while and return faults and invariants."""
    clocks = make_clocks(folder)
    federation = plan(
        clients=clients,
        rounds=_MANY_ROUNDS,
        rounds_per_invitation=3,
        sigma=4.0,
        learning_rate=0.1,
        evaluate_every=10,
    )
    world = World(federation, modes, machines, folder, clocks)
    faults = all_faults(clocks)
    soak = Soak(world, faults, seed)
    share = seconds / len(modes)
    calm = min(_CALM_SECONDS, share / 4)
    try:
        for number in range(len(modes)):
            if number:
                world.next_experiment()
            soak.calm(0.0)
            soak.play(share - calm)
            soak.calm(calm)
    finally:
        world.stop()
    rounds = world.rounds()
    protocol = check(world.cluster, world.settings)
    protocol.expect(GOES_ON, rounds > 0, "no round was ever played")
    for injection in soak.injections:
        told = f"no round was played after: {injection.name}"
        protocol.expect(GOES_ON, rounds > injection.over, told)
    left = processes_left(folder)
    protocol.expect(NOTHING_LEFT, not left, f"still there: {left}")
    return {
        "seed": seed,
        "clients": clients,
        "modes": [str(mode) for mode in modes],
        "rounds": rounds,
        "clocks": clocks is not None,
        "faults": _table(soak, faults, rounds),
        "invariants": [dataclasses.asdict(one) for one in protocol.invariants()],
    }


def processes_left(folder):
    """Return what does not end by itself within a while, as a guard's charges do."""
    deadline = time.monotonic() + _END_SECONDS
    while (left := processes(folder)) and time.monotonic() < deadline:
        time.sleep(_TICK_SECONDS)
    return left


def _table(soak, faults, rounds):
    """Return how often each fault was injected and survived."""
    return [
        {
            "fault": fault.name,
            "injected": sum(one.name == fault.name for one in soak.injections),
            "survived": sum(
                one.name == fault.name and rounds > one.over for one in soak.injections
            ),
        }
        for fault in faults
    ]


def show(result):
    """Print a result for people."""
    console = Console()
    faults = Table("fault", "injected", "survived", title="Faults")
    for row in result["faults"]:
        faults.add_row(row["fault"], str(row["injected"]), str(row["survived"]))
    invariants = Table("invariant", "checks", "violated", title="Invariants")
    for row in result["invariants"]:
        invariants.add_row(row["name"], str(row["checks"]), str(len(row["violations"])))
    console.print(faults, invariants)
    if not result["clocks"]:
        console.print("Clocks were left alone: there is no C compiler (cc).")
    for row in result["invariants"]:
        for violation in row["violations"]:
            console.print(f"VIOLATED: {row['name']}: {violation}", markup=False)
    console.print(
        f"{result['clients']} nodes played {result['rounds']} rounds: "
        f"{sum(row['injected'] for row in result['faults'])} faults injected, "
        f"{sum(row['checks'] for row in result['invariants'])} invariants checked, "
        f"{violated(result)} violated (seed of the faults: {result['seed']}).",
        highlight=False,
    )


def violated(result):
    """Return how many checks failed."""
    return sum(len(row["violations"]) for row in result["invariants"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--machines", type=int, default=6, help="Processes of the clients.")
    parser.add_argument(
        "--mode", action="append", choices=["trusted", "untrusted"], help="Default: both in turn."
    )
    parser.add_argument("--seed", default=secrets.token_hex(4), help="Of the faults' schedule.")
    parser.add_argument("--folder", type=Path, help="Kept; else a temporary one, kept if violated.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-") if options.folder is None else options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    modes = [Mode(mode) for mode in options.mode or ("trusted", "untrusted")]
    print(f"Soaking for {options.seconds:g} s in {folder}, seed {options.seed}.", file=sys.stderr)
    result = run(
        options.seconds,
        options.clients,
        options.machines,
        modes,
        options.seed,
        folder.absolute(),
    )
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)
    if violated(result):
        print(f"Everything is in {folder}.", file=sys.stderr)
        return 1
    if options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
