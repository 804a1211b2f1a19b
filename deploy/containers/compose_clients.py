"""Further clients of the container cluster, each with a secret and volumes of its own.

``python deploy/containers/compose_clients.py 5`` writes ``docker-compose.clients.yml`` with the
clients after the third, as copies of the last client in ``docker-compose.yml``, and makes the
folders of their secrets. It needs nothing but Python, since nothing else need be installed beside
Docker.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from coinflower.accounting.errors import UserError

OWN_CLIENTS = 3
"""Clients that ``docker-compose.yml`` names itself."""
MOST_CLIENTS = 200

BASE, FILE = "docker-compose.yml", "docker-compose.clients.yml"
_LAST = f"client-{OWN_CLIENTS}"
_HEAD = f"""\
# Made by: python deploy/containers/compose_clients.py {{clients}}
#   docker compose --file {BASE} --file {FILE} up --build --wait
"""


def render(base: str, clients: int) -> str:
    """Return a compose file with the clients that a base file lacks.

    Args:
        base: The text of ``docker-compose.yml``.
        clients: Number of all clients, those of the base included.

    Raises:
        ValueError: There is none to add, or too many are asked for.
    """
    if not OWN_CLIENTS < clients <= MOST_CLIENTS:
        raise UserError(
            f"clients = {clients} must be from {OWN_CLIENTS + 1} to {MOST_CLIENTS}; {BASE} alone "
            f"has {OWN_CLIENTS}."
        )
    names = [f"client-{index}" for index in range(OWN_CLIENTS + 1, clients + 1)]
    shared = _between(base, r"^x-locked:", r"^services:")
    service = _between(base, rf"^  {_LAST}:\n    <<", r"^(?:networks:|  \S)")
    mounts = re.findall(rf"^      - {_LAST}-\w+:/clients/.*\n", base, re.M)
    secret = _between(base, rf"^  {_LAST}:\n    file", r"^(?:volumes:|  \S)")
    volumes = re.findall(rf"^  {_LAST}-\w+: {{}}\n", base, re.M)
    parts = [
        _HEAD.format(clients=clients),
        shared,
        f'services:\n  setup:\n    environment:\n      COINFLOWER_CLIENTS: "{clients}"\n',
        "    volumes:\n",
        *_copies("".join(mounts), names),
        "\n",
        *_copies(service, names),
        "secrets:\n",
        *_copies(f"{secret.rstrip()}\n", names),
        "\nvolumes:\n",
        *_copies("".join(volumes), names),
    ]
    return "".join(parts)


def _between(text: str, begin: str, end: str) -> str:
    """Return a text's part from the line that begins so to the next one that begins otherwise."""
    first = re.search(begin, text, re.M)
    assert first is not None
    last = re.compile(end, re.M).search(text, first.end())
    assert last is not None
    return text[first.start() : last.start()]


def _copies(block: str, names: list[str]) -> list[str]:
    return [block.replace(_LAST, name) for name in names]


def write(folder: Path, clients: int) -> Path:
    """Write the file beside the compose file in a folder, and make the folders of the secrets."""
    text = render((folder / BASE).read_text(), clients)
    for index in range(OWN_CLIENTS + 1, clients + 1):
        # Docker would make a missing one itself, for everybody to read.
        (folder / "deploy" / "secrets" / f"client-{index}").mkdir(
            mode=0o700, parents=True, exist_ok=True
        )
    (folder / FILE).write_text(text)
    return folder / FILE


def main() -> None:
    """Write the file for the number of clients on the command line."""
    parser = argparse.ArgumentParser(
        prog="python deploy/containers/compose_clients.py", description=__doc__
    )
    parser.add_argument("clients", type=int, help="number of all clients")
    parser.add_argument("--folder", type=Path, default=Path(), help=f"where {BASE} is")
    asked = parser.parse_args()
    try:
        print(f"Written: {write(asked.folder, asked.clients)}")
    except (UserError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
