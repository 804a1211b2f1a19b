"""The commands of a notary: a second party, which lets servers open sums over many clients."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from coinflower.cli.machines.connection import (
    Insecure,
    RootCertificates,
    ServerAddress,
    read_authority,
)
from coinflower.cli.machines.options import (
    FOR_THE_OWNER_ONLY,
    DrainSeconds,
    HealthHost,
    HealthPort,
)
from coinflower.cli.output import JsonFlag, print_json, print_table
from coinflower.deploy.machines.logs import LogFormat, LogFormatOption, start_logging
from coinflower.deploy.machines.notary_folder import NotaryFolder
from coinflower.deploy.signals import stop_on_signals
from coinflower.deploy.terminal import say

app = typer.Typer(no_args_is_help=True, add_completion=False)

_DEFAULT_FOLDER = Path("notary")
# A round waits for its notary, which is alone; clients share what the SuperLink can bear.
_POLL_SECONDS = 0.1

Folder = Annotated[Path, typer.Option(help="The notary's folder.")]
OwnerKey = Annotated[Path, typer.Argument(help="The owner's public key, NAME.pub.")]


@app.command()
def create(folder: Folder = _DEFAULT_FOLDER, as_json: JsonFlag = False) -> None:
    """Make a notary: its keys and an empty record of what it opens."""
    os.umask(FOR_THE_OWNER_ONLY)
    notary = NotaryFolder(folder)
    notary.create()
    key = notary.public_key
    if as_json:
        print_json({"folder": str(folder), "key": key, "public_file": str(notary.public_file)})
        return
    say(f"Made the notary {key}.")
    say(f"Give {notary.public_file} to every data owner, for the policy: notaries = [...]")
    node = notary.node_key.with_suffix(".pub")
    say(f"Give {node} to the server's operator, for: coinflower server allow {node.name}")
    say(f"Never restore {folder} from a backup: rounds could be opened twice.")


@app.command()
def run(
    superlink: ServerAddress,
    folder: Folder = _DEFAULT_FOLDER,
    insecure: Insecure = False,
    root_certificates: RootCertificates = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    drain_seconds: DrainSeconds = 20.0,
) -> None:
    """Join a federation as its notary and stay until Ctrl-C or SIGTERM."""
    os.umask(FOR_THE_OWNER_ONLY)
    start_logging(log_format)
    authority = read_authority(superlink, root_certificates, insecure=insecure)
    kept = NotaryFolder(folder)
    notary = kept.open()

    from coinflower.client.node.private_key import load_private_key
    from coinflower.client.node.proxies import environment_proxy
    from coinflower.client.node.resident import ResidentNode
    from coinflower.deploy.machines.health import HealthServer
    from coinflower.notary.app import make_app

    with stop_on_signals() as stop:
        node = ResidentNode(
            superlink,
            make_app(notary),
            stop=stop,
            insecure=insecure,
            root_certificates=authority,
            private_key=None if insecure else load_private_key(kept.node_key),
            poll_interval=_POLL_SECONDS,
            drain_seconds=drain_seconds,
            proxy=environment_proxy(superlink),
        )
        with HealthServer(health_port, lambda: node.joined, host=health_host):
            node.run()


@app.command()
def allow(key: OwnerKey, folder: Folder = _DEFAULT_FOLDER) -> None:
    """Count an owner for the threshold; a running notary picks it up at once."""
    kept = NotaryFolder(folder)
    kept.load_key()
    say(kept.registry.allow(key))


@app.command()
def revoke(key: OwnerKey, folder: Folder = _DEFAULT_FOLDER) -> None:
    """Count an owner no more; a running notary picks it up at once."""
    kept = NotaryFolder(folder)
    kept.load_key()
    say(kept.registry.revoke(key))


@app.command()
def show(folder: Folder = _DEFAULT_FOLDER, as_json: JsonFlag = False) -> None:
    """Show a notary's key, whom it counts, and what it has opened."""
    kept = NotaryFolder(folder)
    key = kept.public_key
    record = kept.open_record(read_only=True)
    opened, witnesses = record.opened(), record.witnesses()
    owners = sorted(kept.registry.keys())
    if as_json:
        print_json(
            {
                "key": key,
                "owners": owners,
                "witnesses": witnesses,
                "rounds_opened": sum(each.rounds for each in opened),
                "experiments": [vars(each) for each in opened],
            }
        )
        return
    say(f"Notary {key}")
    say(f"Owners that count: {', '.join(owners) or 'none'}")
    say(f"Ledgers that it is a witness of: {witnesses}")
    print_table(
        "Opened",
        ["experiment", "rounds", "last round", "fewest clients", "last opened"],
        [
            [each.experiment, each.rounds, each.last_round, each.fewest_owners, each.last_at]
            for each in opened
        ],
    )
