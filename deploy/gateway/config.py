"""The gateway: an nginx that stands before a SuperLink and lets nodes through, and nothing else.

Flower's SuperLink serves the Fleet API (nodes), the Control API (whoever reaches it may start runs
and register nodes) and the Runtime API on one port. The gateway is the only thing that a network
sees of it. It judges the request line as it arrived, before any decoding or normalising, so that an
encoded slash or a dot segment is simply another path, and another path is not served.

Its configuration is made from ``nginx.conf.jinja``; ``python -m coinflower.deploy.gateway.config``
prints that of the container image (``deploy/gateway/nginx.conf``).
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path, PurePosixPath

from jinja2 import StrictUndefined, Template

from coinflower.accounting.errors import UserError
from coinflower.protocol.terms import Terms

CONTAINER_PORT = 8443
LIMITS = "limits.conf"
"""File in the container gateway's secret that holds its largest body, made for the run's model."""

_BYTES_A_PARAMETER = 4
LEAST_BODY = 1 << 20

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_UNSAFE_IN_PATH = re.compile(r'[\x00-\x1f\x7f"\\$]')


def render_config(
    *,
    listen: str,
    certificate: Path,
    key: Path,
    upstream: str,
    upstream_ca: Path | None,
    runtime_folder: Path,
    upstream_name: str | None = None,
    resolver: str | None = None,
    largest_body: int | None = None,
    access_log: Path = Path("/dev/stdout"),
) -> str:
    """Return a complete ``nginx.conf`` for an nginx in the foreground, run by any user.

    Start it with ``nginx -e stderr -c FILE``. Bodies of requests that are still arriving are kept
    in ``runtime_folder``: let it be in memory (below ``/run``) where the disk is not to be trusted.

    Args:
        listen: Address and port that nodes connect to, as in ``0.0.0.0:8443``.
        certificate: PEM file of the gateway's certificate, followed by intermediate ones.
        key: PEM file of its private key.
        upstream: ``host:port`` of the SuperLink.
        upstream_ca: PEM file of the authority of the SuperLink's certificate; None speaks plain
            HTTP to it, which is for one machine only.
        runtime_folder: A folder that exists, for the process id and temporary files.
        upstream_name: DNS name in the SuperLink's certificate; the host of ``upstream`` if None.
            nginx does not look at IP addresses in certificates.
        resolver: Address of a name server to look the host of ``upstream`` up with while running;
            None looks it up once, at the start, and keeps connections to it open.
        largest_body: Bytes of the largest request that passes (see ``largest_body``); None includes
            the file ``limits.conf`` beside the certificate, which says so.
        access_log: Where requests are logged.

    Raises:
        ValueError: Naming the argument and what is wrong with it.
    """
    _require_address("listen", listen)
    host = _require_address("upstream", upstream)
    if upstream_ca is not None:
        upstream_name = host if upstream_name is None else upstream_name
        _require_dns_name(upstream_name)
    if resolver is not None:
        ipaddress.ip_address(resolver)
    paths = {
        "certificate": certificate,
        "key": key,
        "upstream_ca": upstream_ca,
        "runtime_folder": runtime_folder,
        "access_log": access_log,
        "limits": certificate.with_name(LIMITS),
    }
    template = Template(
        (Path(__file__).parent / "nginx.conf.jinja").read_text(),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    made: str = template.render(
        listen=listen,
        upstream=upstream,
        upstream_name=upstream_name,
        resolver=resolver,
        limit=None if largest_body is None else render_limit(largest_body),
        **{name: path and _path(name, path) for name, path in paths.items()},
    )
    return made


def largest_body(terms: Terms) -> int:
    """Return how many bytes the largest message of a run has: a sum of the model's size.

    Raises:
        ValueError: The terms' model is unknown.
    """
    from coinflower.learning import count_parameters, model_of

    each = max(_BYTES_A_PARAMETER, (terms.ring_bits or 0) // 8)
    return each * count_parameters(model_of(terms)) + LEAST_BODY


def render_limit(largest_body: int) -> str:
    """Return the directive that limits bodies to that many bytes.

    Raises:
        ValueError: The limit would be none.
    """
    if largest_body < 1:
        raise UserError(f"largest_body = {largest_body} must be at least 1: to nginx 0 is no end.")
    return f"client_max_body_size {largest_body};"


def render_container_config() -> str:
    """Return the configuration of the gateway's container image.

    The certificate, its key and the authority come in a secret; Docker's own name server finds the
    SuperLink, which is the service ``server``.
    """
    secret = Path("/run/secrets/gateway")
    return render_config(
        listen=f"0.0.0.0:{CONTAINER_PORT}",
        certificate=secret / "server.pem",
        key=secret / "server.key",
        upstream="server:8000",
        upstream_ca=secret / "ca.pem",
        runtime_folder=Path("/run/nginx"),
        resolver="127.0.0.11",
    )


def _require_address(name: str, value: str) -> str:
    match = _ADDRESS.fullmatch(value)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise UserError(f"{name} = {value!r} must be host:port.")
    return match["host"]


def _require_dns_name(name: str) -> None:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        if _NAME.fullmatch(name):
            return
        raise UserError(f"upstream_name = {name!r} must be a DNS name.") from None
    raise UserError(
        f"upstream_name = {name!r} must be a DNS name of the SuperLink's certificate: "
        "nginx does not look at IP addresses there."
    )


def _path(name: str, path: Path) -> PurePosixPath:
    if _UNSAFE_IN_PATH.search(str(path)):
        raise UserError(f"{name} = {str(path)!r} holds a character that nginx would misread.")
    return PurePosixPath(path.absolute())


if __name__ == "__main__":
    print(render_container_config(), end="")
