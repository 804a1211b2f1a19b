"""A real federation over TLS, with a listener on every client's line and one in the server."""

import contextlib
import json
import os
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import tomli_w
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.deploy.flower.guard import start_guarded, stop_guarded
from coinflower.deploy.flower.loopback import LOOPBACK
from coinflower.deploy.flower.run_app import write_app
from coinflower.deploy.flower.superlink import Superlink, TlsFiles
from coinflower.deploy.keys.keys import make_authority, make_server_certificate
from coinflower.deploy.local.cluster import prepare
from coinflower.learning import Update
from coinflower.masking.tickets import owner_name
from coinflower.protocol import messages
from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import Terms
from coinflower.server.journal import read_metrics
from coinflower.server.settings import load_settings, save_settings
from tests.support.federations import check_ledgers, plan
from tests.support.notaries import signing_keys
from tests.support.waiting import wait_until
from tests.support.wires import Tap
from tests.wire.machine import NOTARY
from tests.wire.record import read_exchanges, read_visits

# So much noise that a content tells next to nothing of the coin by itself: what does is a leak.
NOISE_MULTIPLIER = 1000.0
_IDS = "nodes.json"
_ROOT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All that there was to be seen of a run, and the coins that nobody was to see.

    Attributes:
        mode: The privacy mode.
        round_seconds: The fixed pace, if any.
        kinds: What each client is, one of ``leaky.KINDS``.
        coins: By client, the coin of each round, from its ledger.
        segments: By client, what passed on its line.
        exchanges: Questions and answers on their way into the SuperLink's database.
        visits: When nodes polled and sent heartbeats, by kind and node.
        nodes: By client, its node id.
        owners: By client, the name by which a notary knows it; none without a notary.
        notary: The notary's private key, in mode masked.
        terms: The terms of the run.
        metrics: The server's own, by round.
    """

    mode: Mode
    round_seconds: float | None
    kinds: list
    coins: list
    segments: list
    exchanges: list
    visits: dict
    nodes: list
    metrics: list
    terms: Terms
    owners: list
    notary: X25519PrivateKey | None

    def rounds_asked(self):
        """Return, for each round in which anybody was asked for a sum, when that began."""
        starts = {}
        for one in self.sums():
            round_ = one.question[messages.ROUND]
            starts[round_] = min(one.asked_at, starts.get(round_, one.asked_at))
        return dict(sorted(starts.items()))

    def sums(self):
        return [one for one in self.exchanges if one.kind == f"train.{messages.GRADIENT}"]

    def openings(self):
        """Return what a notary was asked to open, by round."""
        asked = [one for one in self.exchanges if one.kind == f"query.{messages.OPEN}"]
        return {one.question[messages.ROUND]: one for one in asked}


class _ListeningSuperlink(Superlink):
    """A SuperLink with a listener before its database."""

    def __init__(self, directory, **options):
        self.record = directory / "record"
        super().__init__(directory, environment={"WIRE_RECORD": str(self.record)}, **options)

    def _command(self):
        stock = super()._command()
        program = str(Path(__file__).parent / "listening_superlink.py")
        return [
            sys.executable,
            program,
            *stock[stock.index("coinflower.deploy.flower.fenced_superlink") + 1 :],
        ]


def observe(folder, mode, kinds, *, rounds, round_seconds=None):
    """Play a federation with one client of each kind given and return all there was to see.

    Args:
        folder: For everything.
        mode: The privacy mode.
        kinds: One name of ``leaky.KINDS`` a client.
        rounds: How many.
        round_seconds: The fixed pace, if any.
    """
    cluster = prepare(
        plan(
            mode=mode,
            clients=len(kinds),
            rounds=rounds,
            rounds_per_invitation=10,
            sigma=NOISE_MULTIPLIER,
            update=Update(learning_rate=1e-6),
            evaluate_every=rounds,
            poll_seconds=0.1,
            round_seconds=round_seconds,
        ),
        folder / "run",
    )
    settings = load_settings(cluster.settings)
    everybody = replace(
        settings,
        least_clients=len(kinds),
        patience_seconds=_PATIENCE_SECONDS,
        reply_seconds=_PATIENCE_SECONDS,
    )
    save_settings(everybody, cluster.settings)
    for policy in cluster.policies:
        table = tomllib.loads(policy.read_text())
        table["budget"]["epsilon"] = 1.0  # with so much noise the plan costs 0, to the last digit
        policy.write_text(tomli_w.dumps(table))
    keys = folder / "keys"
    make_authority(keys)
    make_server_certificate(keys, [LOOPBACK])
    tls = TlsFiles(ca=keys / "ca.pem", certificate=keys / "server.pem", key=keys / "server.key")
    superlink = _ListeningSuperlink(folder / "superlink", tls=tls)
    app = write_app(
        folder / "app",
        serverapp="coinflower.server.app:app",
        clientapp="coinflower.client.app:app",
        config={"settings": str(cluster.settings)},
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(superlink)
        # Nobody listens to the notary's line.
        taps = [Tap(superlink.port) for _ in kinds]
        for tap in taps:
            stack.callback(tap.close)
        nodes = [
            f"{kind}={tap.port}={policy}"
            for kind, tap, policy in zip(kinds, taps, cluster.policies, strict=True)
        ]
        if cluster.notary is not None:
            nodes.append(f"{NOTARY}={superlink.port}={cluster.notary.path}")
        stack.enter_context(_machine(folder, tls.ca, nodes))
        status = superlink.wait(superlink.start_run(app))
        if not status.completed:
            raise AssertionError(f"the run failed: {status.details}; see {folder}")
    return Observation(
        mode=mode,
        round_seconds=round_seconds,
        kinds=list(kinds),
        coins=list(check_ledgers(cluster).values()),
        segments=[sorted(tap.segments, key=lambda one: one.at) for tap in taps],
        exchanges=read_exchanges(superlink.record),
        visits=read_visits(superlink.record),
        nodes=json.loads((folder / _IDS).read_text())[: len(kinds)],
        metrics=read_metrics(cluster.server),
        terms=cluster.terms,
        owners=[owner_name(key.public_key()) for key in signing_keys(cluster.policies)],
        notary=cluster.notary and cluster.notary.load_key(),
    )


@contextlib.contextmanager
def _machine(folder, authority, nodes):
    """Run the nodes; returns once all have joined."""
    program = Path(__file__).parent / "machine.py"
    environment = {**os.environ, "FLWR_HOME": str(folder / "flwr"), "PYTHONPATH": str(_ROOT)}
    with (folder / "machine.log").open("ab") as log:
        command = [sys.executable, str(program), str(authority), str(folder / _IDS), *nodes]
        guard = start_guarded(command, env=environment, log=log)
    try:
        wait_until((folder / _IDS).exists, alive=lambda: guard.poll() is None)
        yield
    finally:
        stop_guarded(guard)
