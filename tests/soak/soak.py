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

from rich.console import Console
from rich.table import Table

from coinflower.learning import Update
from coinflower.protocol.modes import Mode
from tests.soak.dishonest import KINDS
from tests.soak.faults import all_faults, make_clocks
from tests.soak.invariants import check, check_named
from tests.soak.world import World
from tests.support.federations import plan, processes

GOES_ON = "after every fault rounds are played, and the machine answers"
NOTHING_LEFT = "no process is left"
_TICK_SECONDS = 0.1
_GAP_SECONDS = 4.0
_CALM_SECONDS = 45.0
_PATIENCE_SECONDS = 300.0
_END_SECONDS = 30.0
_MANY_ROUNDS = 5000
_MODES = ("trusted", "untrusted", "masked")


@dataclasses.dataclass(kw_only=True)
class Injection:
    """A fault that was injected.

    Attributes:
        name: Which one.
        experiment: During which experiment.
        machine: Which client machine was hit; None if the server was.
        over: Rounds of the experiment played when it was undone; None while it lasts.
        said: Answers that the machine had given by then.
    """

    name: str
    experiment: int
    machine: int | None
    over: int | None = None
    said: int = 0

    def end(self, world):
        """Note that it was undone."""
        self.over = world.rounds(self.experiment)
        self.said = 0 if self.machine is None else world.said[self.machine]

    def survived(self, world):
        """Whether rounds of the experiment were played since, and the machine answered."""
        return (
            self.over is not None
            and world.rounds(self.experiment) > self.over
            and (self.machine is None or world.said[self.machine] > self.said)
        )


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
        """Leave the world alone for a while, and longer, within bounds, until all is well again.

        That is when a round was played, and every fault of this experiment survived.
        """
        start = self._world.rounds()
        began = time.monotonic()
        while (waited := time.monotonic() - began) < _PATIENCE_SECONDS:
            self._turn()
            well = not self._undos and self._world.rounds() > start and self._all_survived()
            if waited > seconds and well:
                return
            time.sleep(_TICK_SECONDS)

    def _all_survived(self):
        return all(
            one.survived(self._world)
            for one in self.injections
            if one.experiment == self._world.experiment
        )

    def _turn(self):
        """Undo what is due and start what has ended."""
        self._world.supervise()
        self._undo(time.monotonic())

    def _recovered(self):
        return self._server_fault is None or self._server_fault.survived(self._world)

    def _inject_due(self, schedule):
        fault = schedule.due(time.monotonic())
        return None if fault is None else self.inject(fault, schedule.choose)

    def inject(self, fault, choose):
        """Inject a fault that is undone in due time; returns None if there was nothing to hit."""
        undo, machine = fault.inject(self._world, choose)
        if undo is None:
            return None
        injection = Injection(name=fault.name, experiment=self._world.experiment, machine=machine)
        self.injections.append(injection)
        seconds, rounds = time.monotonic() - self._started, self._world.rounds()
        print(f"{seconds:5.0f} s, {rounds} rounds: {fault.name}", file=sys.stderr)
        until = time.monotonic() + choose.uniform(*fault.seconds)
        heapq.heappush(self._undos, (until, next(self._numbers), undo, injection))
        return injection

    def _undo(self, now):
        while self._undos and self._undos[0][0] <= now:
            _, _, undo, injection = heapq.heappop(self._undos)
            undo()
            injection.end(self._world)


def run(seconds, clients, machines, modes, seed, folder):
    """Soak for a while and return faults and invariants."""
    clocks = make_clocks(folder)
    federation = plan(
        clients=clients,
        rounds=_MANY_ROUNDS,
        rounds_per_invitation=3,
        sigma=4.0,
        update=Update(learning_rate=0.1),
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
    rounds = [world.rounds(number) for number in range(len(modes))]
    protocol = check(world.cluster, world.settings, strangers=len(KINDS))
    check_named(protocol, world.server_log)
    for mode, played in zip(modes, rounds, strict=True):
        protocol.expect(GOES_ON, played > 0, f"no round was played in mode {mode}")
    for injection in soak.injections:
        told = f"no round was played, or no answer came, after: {injection.name}"
        protocol.expect(GOES_ON, injection.survived(world), told)
    left = processes_left(folder)
    protocol.expect(NOTHING_LEFT, not left, f"still there: {left}")
    return {
        "seed": seed,
        "clients": clients,
        "modes": [str(mode) for mode in modes],
        "rounds": sum(rounds),
        "clocks": clocks is not None,
        "faults": _table(soak, faults, world),
        "invariants": [dataclasses.asdict(one) for one in protocol.invariants()],
    }


def processes_left(folder):
    """Return what does not end by itself within a while, as a guard's charges do."""
    deadline = time.monotonic() + _END_SECONDS
    while (left := processes(folder)) and time.monotonic() < deadline:
        time.sleep(_TICK_SECONDS)
    return left


def _table(soak, faults, world):
    """Return how often each fault was injected and survived."""
    return [
        {
            "fault": fault.name,
            "injected": sum(one.name == fault.name for one in soak.injections),
            "survived": sum(
                one.name == fault.name and one.survived(world) for one in soak.injections
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
        "--mode", action="append", choices=list(_MODES), help="Default: all in turn."
    )
    parser.add_argument("--seed", default=secrets.token_hex(4), help="Of the faults' schedule.")
    parser.add_argument("--folder", type=Path, help="Kept; else a temporary one, kept if violated.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-") if options.folder is None else options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    modes = [Mode(mode) for mode in options.mode or _MODES]
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
