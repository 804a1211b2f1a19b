"""What a pod needs before its programs start, made anew each time; see deploy/kubernetes.

Kubernetes hands out secrets as files that the pod's group may read, and keys that others may read
are refused. So they are copied, for their owner alone, into a volume in memory. The gateway's
configuration is made from the server's settings: it takes messages as large as the largest
model of that experiment and of those that were submitted since.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.deploy.gateway.config import CONTAINER_PORT, render_config
from coinflower.deploy.keys.key_files import write_file
from coinflower.deploy.keys.keys import CA_CERTIFICATE, CA_KEY, SERVER_CERTIFICATE, SERVER_KEY
from coinflower.deploy.machines.queue import largest_body_of
from coinflower.deploy.terminal import complain
from coinflower.server.settings import load_settings


def copy_keys(secrets: Path, keys: Path) -> None:
    """Copy the files of a secret for their owner alone.

    Raises:
        ValueError: The authority's own key is among them, which no pod needs.
    """
    if (secrets / CA_KEY).exists():
        raise UserError(
            f"The secret holds {CA_KEY}, with which anybody can pose as the server; make it anew, "
            "without that file."
        )
    # What begins with dots is how Kubernetes replaces all files at once.
    for file in sorted(path for path in secrets.iterdir() if not path.name.startswith("..")):
        write_file(keys / file.name, file.read_bytes(), mode=0o600)


def render_gateway(settings: Path, keys: Path, folder: Path) -> str:
    """Return the configuration of a gateway that reaches the SuperLink on the pod's loopback."""
    return render_config(
        listen=f"0.0.0.0:{CONTAINER_PORT}",
        certificate=keys / SERVER_CERTIFICATE,
        key=keys / SERVER_KEY,
        upstream="127.0.0.1:8000",
        upstream_ca=keys / CA_CERTIFICATE,
        upstream_name="localhost",
        runtime_folder=Path("/run/nginx"),
        largest_body=largest_body_of(load_settings(settings), folder),
    )


def main() -> None:
    """Set up a pod, in its init container."""
    parser = argparse.ArgumentParser(prog="python -m coinflower.deploy.containers.pod_setup")
    parser.add_argument("--secrets", type=Path, required=True, help="the mounted secret")
    parser.add_argument("--keys", type=Path, required=True, help="folder for the copies")
    parser.add_argument("--settings", type=Path, help="the server's settings")
    parser.add_argument(
        "--folder", type=Path, default=Path("superlink"), help="the server's folder"
    )
    parser.add_argument("--gateway", type=Path, help="file for the gateway's configuration")
    asked = parser.parse_args()
    try:
        copy_keys(asked.secrets, asked.keys)
        if asked.gateway is not None:
            content = render_gateway(asked.settings, asked.keys, asked.folder)
            write_file(asked.gateway, content.encode(), mode=0o600)
    except (UserError, OSError) as error:
        complain(str(error))
        sys.exit(2)


if __name__ == "__main__":
    main()
