"""What the container cluster needs before its first start, made where it is missing.

Runs once at every ``docker compose up``, before everything else, and overwrites nothing but
certificates that expire soon or are for other names: keys and certificates (into
``deploy/secrets``, which compose hands out as secrets), the server's settings, and for every client
a policy and an empty ledger in its own volumes. The clients' data is
scikit-learn's digits, shared out among them; an owner puts a data set and a policy of their own
into the volume.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import tomllib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import tomli_w

from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.deploy.containers import compose_notary
from coinflower.deploy.containers.compose_options import Options
from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.gateway.config import LIMITS, render_limit
from coinflower.deploy.keys.key_files import load_certificate, write_file
from coinflower.deploy.keys.keys import (
    ALWAYS_NAMED,
    CA_CERTIFICATE,
    CA_KEY,
    SERVER_CERTIFICATE,
    SOON,
    make_authority,
    make_node_key,
    make_server_certificate,
    subject_names,
)
from coinflower.deploy.machines.node_registry import FOLDER as NODES
from coinflower.deploy.machines.node_registry import Registry
from coinflower.deploy.machines.queue import largest_body_of
from coinflower.deploy.terminal import complain, say
from coinflower.protocol.policy import load_policy
from coinflower.server.settings import load_settings, save_settings

USER = 10001
"""Numeric user and group of the containers."""

POLICY, LEDGER = "policy.toml", "ledger.db"
SETTINGS = "settings.toml"
SERVER_HOME = Path("/var/lib/coinflower")
SUPERLINK = "superlink"
AUTHORITY = "authority"
# Budget of a client for which none is stated: enough for the demonstration.
_EPSILON, _DELTA = 3.0, 1e-3


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where everything goes.

    Attributes:
        secrets: Folder of the secrets.
        server: The server's volume.
        clients: Folder that the clients' volumes are mounted in.
        notary: The notary's volume, in mode masked.
    """

    secrets: Path
    server: Path
    clients: Path
    notary: Path

    def secret(self, index: int) -> Path:
        """Return where a client's secret is; clients count from 1."""
        return self.secrets / f"client-{index}"

    def data(self, index: int) -> Path:
        """Return where a client's policy and data are."""
        return self.clients / f"client-{index}" / "data"

    def ledger(self, index: int) -> Path:
        """Return where a client's ledger is."""
        return self.data(index).with_name("ledger")

    def handed_out(self) -> list[Path]:
        """Every volume and secret that containers get to see."""
        secrets = [one for one in self.secrets.iterdir() if one.is_dir() and one.name != AUTHORITY]
        notary = [self.notary] if self.notary.exists() else []
        return [self.server, *self.clients.glob("client-*/*"), *secrets, *notary]


def set_up(options: Options, place: Place) -> list[str]:
    """Make what is missing and return what was made, in sentences.

    Raises:
        ValueError: What is there was made for something else, or a ledger is gone.
    """
    settings = place.server / SETTINGS
    if settings.exists():
        _require_same(options, settings)
        _require_all_there(options, place)
        if options.mode.masks_sums:
            compose_notary.require_there(place.notary)
    _require_budgets(options, place)
    told = _make_keys(options, place)
    if not settings.exists():
        told += _make_federation(options, place)
    if options.mode.masks_sums:
        told += _introduce_notary(options, place)
    # Made anew each time: the settings may have another model now, and so may what was submitted.
    limit = render_limit(largest_body_of(load_settings(settings), place.server / SUPERLINK))
    write_file(place.secrets / "gateway" / LIMITS, f"{limit}\n".encode(), mode=0o644)
    return told


def _require_same(options: Options, settings: Path) -> None:
    present = load_settings(settings)
    for name, is_now, wanted in (
        ("clients", present.expected_clients, options.clients),
        ("mode", str(present.terms.mode), str(options.mode)),
        ("rounds", present.terms.rounds, options.rounds),
    ):
        if is_now != wanted:
            raise UserError(
                f"This cluster was set up with {name} = {is_now}, not {wanted}; keep that, or "
                "start over, with new ledgers, after: docker compose down --volumes"
            )


def _require_all_there(options: Options, place: Place) -> None:
    for index in range(1, options.clients + 1):
        for what, path, would in (
            ("ledger", place.ledger(index) / LEDGER, "forget what was spent"),
            ("policy", place.data(index) / POLICY, "allow more than its owner did"),
        ):
            if not path.exists():
                raise UserError(
                    f"The {what} of client-{index} is gone, and a new one would {would}; restore "
                    "its volume, or start over with everything after: docker compose down --volumes"
                )


def _require_budgets(options: Options, place: Place) -> None:
    """Refuse budgets that are larger than what is stated; owners may have smaller ones."""
    limits = {"EPSILON": options.epsilon, "DELTA": options.delta}
    if limits == {"EPSILON": None, "DELTA": None}:
        return
    for path in sorted(place.clients.glob(f"client-*/data/{POLICY}")):
        budget = load_policy(path).budget
        for name, limit in limits.items():
            granted = {"EPSILON": budget.epsilon, "DELTA": budget.delta}[name]
            if limit is not None and not granted <= limit:
                raise UserError(
                    f"The policy of {path.parents[1].name} grants {name.lower()} = {granted:g}, "
                    f"more than COINFLOWER_{name} = {limit:g}; its owner may lower it in "
                    f"{POLICY}, or leave out the variable."
                )


def _make_keys(options: Options, place: Place) -> list[str]:
    told = []
    authority = place.secrets / AUTHORITY
    if not (authority / CA_KEY).exists():
        told.append(f"Made an authority: {make_authority(authority).path.name}.")
    for service, names in (("gateway", ("gateway", *options.names)), ("server", ("server",))):
        reason = _why_certify(place.secrets / service / SERVER_CERTIFICATE, names)
        if reason is not None:
            _certify(authority, place.secrets / service, names)
            told.append(f"Made a certificate for {', '.join(names)}: {reason}.")
    # A key that was revoked is not let in again: only a new key is, or all on a new volume.
    nodes = place.server / SUPERLINK / NODES
    fresh = not nodes.exists()
    registry = Registry(nodes)
    for index in range(1, options.clients + 1):
        name, folder = f"client-{index}", place.secret(index)
        public = folder / f"{name}.pub"
        new = not public.exists()
        if new:
            make_node_key(folder, name)
            shutil.copy(authority / CA_CERTIFICATE, folder / CA_CERTIFICATE)
        if new or fresh:
            told.append(registry.allow(public))
    return told


def _why_certify(certificate: Path, names: tuple[str, ...]) -> str | None:
    """Return why a service needs a new certificate, or None if the present one will do."""
    if not certificate.exists():
        return "there was none"
    present = load_certificate(certificate)
    again = f"restart it if it runs: docker compose restart {certificate.parent.name}"
    if set(subject_names(present)) != {name.lower() for name in (*names, *ALWAYS_NAMED)}:
        return f"the old one was for {', '.join(subject_names(present))}; {again}"
    if present.not_valid_after_utc < datetime.now(UTC) + SOON:
        return f"the old one ends on {present.not_valid_after_utc:%Y-%m-%d}; {again}"
    return None


def _certify(authority: Path, folder: Path, names: tuple[str, ...]) -> None:
    """Make a certificate next to the authority and move it, without the authority's own key.

    A new one comes with a new key, too.
    """
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for file in (CA_CERTIFICATE, CA_KEY):
            shutil.copy2(authority / file, work / file)
        make_server_certificate(work, names)
        (work / CA_KEY).unlink()
        folder.mkdir(parents=True, exist_ok=True)
        # The certificate comes last: where it is, all is there.
        for made in sorted(work.iterdir(), key=lambda one: one.name == SERVER_CERTIFICATE):
            write_file(folder / made.name, made.read_bytes(), mode=made.stat().st_mode & 0o777)


def _make_federation(options: Options, place: Place) -> list[str]:
    from coinflower.deploy.local.cluster import prepare
    from coinflower.deploy.local.plan import Plan
    from coinflower.protocol.usual import usual_rounds_per_invitation

    plan = Plan(
        clients=options.clients,
        data="digits",
        mode=options.mode,
        p=options.mode.usual_p,
        epsilon=_EPSILON if options.epsilon is None else options.epsilon,
        delta=_DELTA if options.delta is None else options.delta,
        rounds=options.rounds,
        rounds_per_invitation=usual_rounds_per_invitation(options.rounds),
    )
    told = []
    with tempfile.TemporaryDirectory() as name:
        key = compose_notary.kept_key(place.notary) if options.mode.masks_sums else None
        cluster = prepare(plan, Path(name) / "cluster", notary=key)
        if cluster.notary is not None and key is None:
            told.append(compose_notary.make(place.notary, cluster.notary.load_key()))
        for index, path in enumerate(cluster.policies, start=1):
            if not (place.data(index) / POLICY).exists():
                _make_client(place, index, tomllib.loads(path.read_text()))
                told.append(f"Made a policy and an empty ledger for client-{index}.")
        settings = place.server / SETTINGS
        prepared = replace(
            load_settings(cluster.settings),
            state=SERVER_HOME / "run",
            least_clients=min(2, options.clients),
            patience_seconds=600.0,
            reply_seconds=20.0,
        )
        draft = settings.with_suffix(".draft")
        save_settings(prepared, draft)
        draft.replace(settings)
        told.append(f"Made the settings of a run of {options.rounds} rounds.")
    return told


def _introduce_notary(options: Options, place: Place) -> list[str]:
    """Let the notary join the server, and count the clients' keys."""
    owners = [
        place.secret(index) / f"client-{index}.pub" for index in range(1, options.clients + 1)
    ]
    told = compose_notary.introduce(
        place.notary, owners, Registry(place.server / SUPERLINK / NODES)
    )
    secret = place.secrets / "notary"
    secret.mkdir(parents=True, exist_ok=True)
    shutil.copy(place.secrets / AUTHORITY / CA_CERTIFICATE, secret / CA_CERTIFICATE)
    return told


def _make_client(place: Place, index: int, policy: dict[str, object]) -> None:
    data, ledger = place.data(index), place.ledger(index)
    for folder in (data, ledger):
        folder.mkdir(parents=True, exist_ok=True)
    if not (ledger / LEDGER).exists():
        Ledger.create(ledger / LEDGER, str(policy["data_set"])).close()
    # Seen from the data, the ledger is next door, in the container as here.
    policy = {**policy, "ledger": f"../ledger/{LEDGER}"}
    if "signing_key" in policy:
        name = f"client-{index}"
        policy["signing_key"] = f"/run/secrets/{name}/{name}.key"
    content = tomli_w.dumps(policy)
    write_file(data / POLICY, content.encode(), mode=0o644)


def _give_away(folder: Path) -> None:
    """Make the containers' user the owner of a folder and all below it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)


def main() -> None:
    """Set up the cluster in the container ``setup``."""
    place = Place(
        secrets=Path("/secrets"),
        server=Path("/server"),
        clients=Path("/clients"),
        notary=Path("/notary"),
    )
    try:
        for sentence in set_up(Options.read(os.environ), place) or ["Everything is there."]:
            say(sentence)
    except (UserError, DeploymentError) as error:
        complain(str(error))
        sys.exit(2)
    finally:
        for folder in place.handed_out():
            _give_away(folder)


if __name__ == "__main__":
    main()
