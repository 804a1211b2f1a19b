"""A federation of many programs on one machine, kept up by a supervisor as systemd would."""

import contextlib
import ctypes
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import tomli_w

from coinflower.accounting.composition.compose import epsilon_after
from coinflower.deploy.flower.loopback import LOOPBACK, free_port
from coinflower.deploy.local.cluster import prepare
from coinflower.protocol.modes import Mode
from coinflower.protocol.policy import load_policy
from coinflower.server.journal import METRICS
from coinflower.server.settings import load_settings, save_settings
from tests.soak import dishonest, witness
from tests.support.wires import Wire

WITNESS = "witness.jsonl"
NOTARY_LOG = "notary.log"
_ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1
_RESTART_SECONDS = 1.0
_ROOM = 1 + 1e-9
# Every so many clients there is one that can afford the first experiment only.
_POOR_EVERY = 5


class Program:
    """A process that is started again whenever it ends, until it is told to stop."""

    def __init__(self, command, *, folder, log, environment=None, listen=None):
        self._command = [str(part) for part in command]
        own = {"SOAK_FOLDER": str(folder), "PYTHONPATH": str(_ROOT)}
        self._environment = {**os.environ, **own, **(environment or {})}
        self._log = log
        self._listen = listen
        self._listeners = []
        self._again_at = 0.0
        self._process = None

    def supervise(self):
        """Start the process if there is none."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self._process = None
            self._again_at = time.monotonic() + _RESTART_SECONDS
        if time.monotonic() < self._again_at:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._log.parent,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log if self._listen is None else subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509
            )
        if self._listen is not None:
            stream = self._process.stdout
            listener = threading.Thread(target=self._listen, args=(stream,), daemon=True)
            self._listeners.append(listener)
            listener.start()

    def pids(self, name=""):
        """The process and all below it whose command line has a word in it."""
        if self._process is None or self._process.poll() is not None:
            return []
        tree = [self._process.pid, *_descendants(self._process.pid)]
        return [pid for pid in tree if name in _command_line(pid)]

    def stop(self, patience):
        """Send SIGTERM, and SIGKILL once the patience is over; all it said has then been heard."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        for listener in self._listeners:
            listener.join()


def _die_with_parent():
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _descendants(root):
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                children.setdefault(int(parent), []).append(int(entry.name))
    found, frontier = [], [root]
    while frontier:
        frontier = [child for pid in frontier for child in children.get(pid, [])]
        found.extend(frontier)
    return found


def _command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


class World:
    """Client machines, a wire for each, dishonest clients, a server, and a notary if one is needed.

    The server plays one experiment after the other.

    Args:
        plan: The federation; all experiments share its ledgers.
        modes: Modes of the experiments.
        machines: Client processes; the clients are dealt out to them.
        folder: For everything.
        clocks: ``clocks.environment(name)`` of a machine; None leaves clocks alone.

    Attributes:
        experiment: Which experiment is being played.
        said: By machine, how many answers its clients have given.
        wires: The wires of the client machines; ``all_wires`` has those of all nodes.
        notary: The notary's program, None if no mode needs one; ``notary_wire`` is its wire.
    """

    def __init__(self, plan, modes, machines, folder, clocks=None):
        self.folder = folder
        self.server_log = folder / "server.log"
        self.cluster = prepare(_with_notary(plan, modes), folder / "run")
        self.settings = _write_settings(self.cluster, modes, plan.clients)
        self._metrics = [load_settings(path).state / METRICS for path in self.settings]
        _write_policies(self.cluster, self.settings)
        self._port = free_port(LOOPBACK)
        self._witness = (self.cluster.folder / WITNESS).open("ab")
        self._lock = threading.Lock()
        self.said = [0] * machines
        self._clocks = clocks
        self.wires = [Wire(self._port) for _ in range(machines)]
        self.machines = [
            Program(
                [
                    sys.executable,
                    Path(witness.__file__).absolute(),
                    f"{LOOPBACK}:{wire.port}",
                    *self.cluster.policies[index::machines],
                ],
                folder=folder,
                log=folder / f"machine-{index}.log",
                environment=self._clock(f"machine-{index}"),
                listen=functools.partial(self._note, index),
            )
            for index, wire in enumerate(self.wires)
        ]
        wire = Wire(self._port)
        self.all_wires = [*self.wires, wire]
        self.strangers = Program(
            [sys.executable, Path(dishonest.__file__).absolute(), f"{LOOPBACK}:{wire.port}"],
            folder=folder,
            log=folder / "strangers.log",
        )
        self.notary = None
        if self.cluster.notary is not None:
            self.notary_wire = Wire(self._port)
            self.all_wires.append(self.notary_wire)
            program = [Path(sys.executable).parent / "coinflower", "notary", "run", "--insecure"]
            program += ["--folder", self.cluster.notary.path]
            self.notary = Program(
                [*program, "--superlink", f"{LOOPBACK}:{self.notary_wire.port}"],
                folder=folder,
                log=self.cluster.folder / NOTARY_LOG,
                environment=self._clock("notary"),
            )
        self.experiment = 0
        self.server = self._server()

    def supervise(self):
        """Start again whatever has ended."""
        for program in (self.server, *self._nodes()):
            program.supervise()

    def _nodes(self):
        notary = [] if self.notary is None else [self.notary]
        return [*notary, self.strangers, *self.machines]

    def rounds(self, experiment=None):
        """How many rounds of an experiment, by default the present one, were played so far."""
        path = self._metrics[self.experiment if experiment is None else experiment]
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def next_experiment(self):
        """Drain the server and start it with the next settings."""
        self.server.stop(60.0)
        self.experiment += 1
        self.server = self._server()

    def stop(self):
        """Drain everything."""
        self.server.stop(60.0)
        enders = [threading.Thread(target=node.stop, args=(60.0,)) for node in self._nodes()]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join()
        for wire in self.all_wires:
            wire.close()
        self._witness.close()

    def _server(self):
        settings = self.settings[self.experiment]
        command = [Path(sys.executable).parent / "coinflower", "server", "run", settings]
        command += ["--port", self._port, "--folder", self.folder / "superlink", "--resume"]
        return Program(
            command,
            folder=self.folder,
            log=self.server_log,
            environment=self._clock("server"),
        )

    def _clock(self, name):
        return {} if self._clocks is None else self._clocks.environment(name)

    def _note(self, machine, stream):
        with stream:
            for line in stream:
                with self._lock:
                    self._witness.write(line)
                    self.said[machine] += json.loads(line)["event"] == witness.SAID


def _with_notary(plan, modes):
    """Return a plan with a notary, if a mode needs one, that half of the clients are enough for."""
    if not any(mode.masks_sums for mode in modes):
        return plan
    return replace(plan, mode=Mode.MASKED, threshold=max(2, plan.clients // 2), colluders=1)


def _write_settings(cluster, modes, clients):
    """Write the settings of one experiment a mode and return their paths, in order."""
    paths = []
    base = load_settings(cluster.settings)
    for mode in modes:
        rules = {"mode": mode, "experiment": f"{base.terms.experiment}-{mode}"}
        if not mode.masks_sums:
            rules |= {"threshold": None, "colluders": None, "ring_bits": None, "notaries": ()}
        terms = replace(base.terms, **rules)
        path = cluster.folder / f"settings-{mode}.toml"
        changed = replace(
            base,
            terms=terms,
            state=cluster.folder / f"server-{mode}",
            # One of the dishonest is never let in: there is an honest client in every round. A
            # notary lets none of them in.
            least_clients=terms.threshold or len(dishonest.KINDS),
            expected_clients=max(terms.threshold or 1, clients * 3 // 4),
            patience_seconds=600.0,
            reply_seconds=15.0,
        )
        save_settings(changed, path)
        paths.append(path)
    return paths


def _write_policies(cluster, settings):
    """Let clients take all modes, with the budget for it; some can afford the first one only."""
    plans = [load_settings(path).terms for path in settings]
    for index, path in enumerate(cluster.policies):
        table = tomllib.loads(path.read_text())
        policy = load_policy(path)
        wanted = plans[:1] if index % _POOR_EVERY == 0 else plans
        costs = [(terms.round_cost(policy.declared_size), terms.rounds) for terms in wanted]
        table["modes"] = sorted({str(terms.mode) for terms in plans})
        table["budget"]["epsilon"] = epsilon_after(costs, policy.budget.delta) * _ROOM
        path.write_text(tomli_w.dumps(table))


def read_witness(folder):
    """Return what clients were asked and said, oldest first."""
    path = folder / WITNESS
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]
