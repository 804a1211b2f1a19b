"""The commands that make keys and certificates, and show how long they last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from coinflower.cli.output import JsonFlag, print_json, print_table
from coinflower.deploy.keys.keys import (
    CA_DAYS,
    SERVER_CERTIFICATE,
    SOON,
    Item,
    list_items,
    make_authority,
    make_node_key,
    make_server_certificate,
)
from coinflower.deploy.terminal import say, warn

app = typer.Typer(no_args_is_help=True, add_completion=False)

Folder = Annotated[Path, typer.Argument(help="Folder of keys.")]
Names = Annotated[
    list[str] | None,
    typer.Option("--name", help="Host name or IP address that clients use; may be repeated."),
]


@app.command()
def init(
    folder: Folder,
    name: Names = None,
    days: Annotated[int, typer.Option(help="Days until the authority expires.")] = CA_DAYS,
    renew: Annotated[
        bool,
        typer.Option("--renew", help="Issue a new certificate for the authority's existing key."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a private authority, and with --name the server's certificate too."""
    made = [make_authority(folder, days=days, renew=renew)]
    if name:
        made.append(make_server_certificate(folder, name))
    if as_json:
        print_json({"made": [_fields(item) for item in made]})
        return
    for item in made:
        say(_made(item, renewed=renew and item.kind == "authority"))
    say(f"Give every client {made[0].path}; keep {folder / 'ca.key'} where nobody else reads it.")


@app.command()
def server(
    folder: Folder,
    name: Names = None,
    days: Annotated[
        int | None,
        typer.Option(help="Days until it expires (default: 397, at most the authority's)."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Make or renew the server's certificate; renewing keeps its key, and its names by default."""
    renewed = (folder / SERVER_CERTIFICATE).exists()
    item = make_server_certificate(folder, name or [], days=days)
    if as_json:
        print_json({"made": [_fields(item)], "renewed": renewed})
        return
    say(_made(item, renewed=renewed))
    if renewed:
        say("The key stayed the same; restart the server to show the new certificate.")


@app.command()
def client(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Name of the node.")],
    as_json: JsonFlag = False,
) -> None:
    """Make a node's key pair on the node itself; no authority is needed."""
    item = make_node_key(folder, name)
    if as_json:
        print_json({"made": [_fields(item)]})
        return
    say(f"Made {folder / name}.key, which stays here, and {item.path} ({item.fingerprint}).")
    say(f"Give {item.path} to the server's operator, for: coinflower server allow {item.path.name}")


@app.command()
def show(folder: Folder, as_json: JsonFlag = False) -> None:
    """List the keys and certificates in a folder, with their expiry."""
    items = list_items(folder)
    if as_json:
        print_json({"items": [_fields(item) for item in items]})
        return
    print_table(
        f"Keys in {folder}",
        ["what", "for", "lasts", "private key"],
        [
            [item.kind, item.name, _expiry(item), "here" if item.private else "elsewhere"]
            for item in items
        ],
    )
    for item in items:
        say(f"{item.path.name}  {item.fingerprint}")
    for item in items:
        if item.expires is not None and item.expires - datetime.now(UTC) < SOON:
            warn(f"{item.path}: {_expiry(item)}.")


def _made(item: Item, *, renewed: bool) -> str:
    what = "the authority" if item.kind == "authority" else f"a certificate for {item.name}"
    return f"{'Renewed' if renewed else 'Made'} {what}: {item.path}, {_expiry(item)}."


def _expiry(item: Item) -> str:
    if item.expires is None:
        return "when revoked"
    left = item.expires - datetime.now(UTC)
    word = "expired" if left.total_seconds() < 0 else "expires"
    return f"{word} {item.expires:%Y-%m-%d} ({round(abs(left) / timedelta(days=1))} days)"


def _fields(item: Item) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "name": item.name,
        "path": str(item.path),
        "expires": None if item.expires is None else item.expires.isoformat(),
        "fingerprint": item.fingerprint,
        "private": item.private,
    }
