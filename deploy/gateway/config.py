"""The gateway: an nginx that stands before a SuperLink and lets nodes through, and nothing else.

Flower's SuperLink serves the Fleet API (nodes), the Control API (whoever reaches it may start runs
and register nodes) and the Runtime API on one port. The gateway is the only thing that a network
sees of it. It judges the request line as it arrived, before any decoding or normalising, so that an
encoded slash or a dot segment is simply another path, and another path is not served.

``python -m coinflower.deploy.gateway.config`` prints the configuration of the container image
(``deploy/gateway/nginx.conf``).
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path, PurePosixPath

from coinflower.accounting.errors import UserError
from coinflower.protocol.terms import Terms

CONTAINER_PORT = 8443
LIMITS = "limits.conf"
"""File in the container gateway's secret that holds its largest body, made for the run's model."""

_BYTES_A_PARAMETER = 4
_LEAST_BODY = 1 << 20

_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_UNSAFE_IN_PATH = re.compile(r'[\x00-\x1f\x7f"\\$]')

_TEMPLATE = """\
# Made by deploy/gateway/config.py; edit that, not this.
daemon off;
worker_processes 2;
# A connection that is passed on takes two, and a body that is still arriving one more.
worker_rlimit_nofile 8192;
pid "{folder}/nginx.pid";
error_log stderr warn;

events {{
    worker_connections 2048;
}}

http {{
    # Only the request line, without its query, is logged: no bodies, no keys, no signatures.
    map $request_uri $path {{
        "~^(?<before_query>[^?]*)" $before_query;
    }}
    log_format plain '$time_iso8601 $remote_addr $request_method "$path" $status '
                     'in=$request_length out=$bytes_sent seconds=$request_time '
                     'upstream=$upstream_status tls=$ssl_protocol';
    # What every node asks several times a second is told only if it went wrong; of what comes too
    # often, is garbage or never ends, an example: no stranger fills the disk with lines.
    split_clients $request_id $example {{
        0.1% 1;
        * 0;
    }}
    map "$limit_req_status $limit_conn_status $status $path" $worth_a_line {{
        default 1;
        "~REJECTED" $example;
        "~^[^ ]* [^ ]* 4(00|08) " $example;
        "~ 200 (/v1/fleet/(pull-messages|send-node-heartbeat)|/health)$" 0;
    }}
    access_log {access_log} plain if=$worth_a_line;

    client_body_temp_path "{folder}/body";
    proxy_temp_path "{folder}/proxy";
    fastcgi_temp_path "{folder}/fastcgi";
    uwsgi_temp_path "{folder}/uwsgi";
    scgi_temp_path "{folder}/scgi";

    server_tokens off;
    default_type text/plain;
    types {{ }}

    # A client's answer is one body as large as the model.
    {body_limit}
    client_body_buffer_size 256k;
    client_header_buffer_size 1k;
    large_client_header_buffers 4 8k;

    # A client that dawdles loses its connection, and its memory is given back at once.
    client_header_timeout 10s;
    client_body_timeout 10s;
    send_timeout 30s;
    keepalive_timeout 30s;
    keepalive_requests 10000;
    reset_timedout_connection on;

    # A node asks a few times a second, and some twenty times in a row around a message. Several
    # nodes may share an address. A node takes 503 for "try again later".
    limit_req_zone $binary_remote_addr zone=requests:4m rate=300r/s;
    limit_req zone=requests burst=600 nodelay;
    limit_conn_zone $binary_remote_addr zone=connections:4m;
    limit_conn connections 128;
    # Every one would be a line of the error log, which has no examples.
    limit_req_log_level info;
    limit_conn_log_level info;
    # What is not served is answered all the same, and told as long as it is rare.
    limit_req_zone $binary_remote_addr zone=strangers:4m rate=1r/s;

    # $request_uri is what was sent, not decoded, not normalised, with its query.
    map "$request_method $request_uri" $verdict {{
        default not-here;
        "~^POST /v1/fleet/[a-z]+(-[a-z]+)*$" pass;
        "~^GET /health$" pass;
        "~^[^ ]+ /v1/fleet/[a-z]+(-[a-z]+)*$" not-so;
        "~^[^ ]+ /health$" not-so;
    }}
{upstream_block}
    server {{
        listen {listen} ssl;
        server_name _;

        ssl_certificate "{certificate}";
        ssl_certificate_key "{key}";
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_ciphers ECDHE+AESGCM:ECDHE+CHACHA20;
        ssl_session_cache shared:sessions:2m;
        ssl_session_tickets off;

        # A plain "return" would come before the limits.
        if ($verdict = not-here) {{ rewrite ^ /not-here last; }}
        if ($verdict = not-so) {{ rewrite ^ /not-so last; }}

        location = /not-here {{
            internal;
            limit_req zone=strangers burst=60 nodelay;
            limit_req_status 404;
            try_files /dev/null/none =404;
        }}

        location = /not-so {{
            internal;
            limit_req zone=strangers burst=60 nodelay;
            limit_req_status 405;
            try_files /dev/null/none =405;
        }}

        location / {{
            proxy_pass {scheme}://{target};
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            # What a client calls the server is nothing to the SuperLink.
            proxy_set_header Host superlink;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Proto https;
            # Slow senders are the gateway's burden: the SuperLink gets whole requests only, and
            # large answers are not parked on disk.
            proxy_request_buffering on;
            proxy_buffering on;
            proxy_buffers 16 64k;
            proxy_buffer_size 64k;
            proxy_busy_buffers_size 128k;
            proxy_max_temp_file_size 0;
            proxy_connect_timeout 5s;
            proxy_send_timeout 60s;
            proxy_read_timeout 60s;
            proxy_next_upstream off;
            proxy_redirect off;
            proxy_intercept_errors off;
{proxy_tls}        }}
    }}
}}
"""

# The SuperLink closes idle connections after 5 s; the gateway must be the first to let go.
_UPSTREAM = """
    upstream superlink {{
        server {upstream};
        keepalive 32;
        keepalive_timeout 3s;
    }}
"""

# A name that is looked up again and again: a container gets a new address when it is replaced.
_RESOLVED = """
    resolver {resolver} valid=5s ipv6=off;
    resolver_timeout 3s;
    map $request_method $superlink {{
        default "{upstream}";
    }}
"""

_PROXY_TLS = """\
            proxy_ssl_verify on;
            proxy_ssl_verify_depth 2;
            proxy_ssl_trusted_certificate "{ca}";
            proxy_ssl_name {name};
            proxy_ssl_server_name on;
            proxy_ssl_protocols TLSv1.2 TLSv1.3;
            proxy_ssl_session_reuse on;
"""


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
    proxy_tls = ""
    if upstream_ca is not None:
        name = host if upstream_name is None else upstream_name
        _require_dns_name(name)
        proxy_tls = _PROXY_TLS.format(ca=_path("upstream_ca", upstream_ca), name=name)
    block, target = _UPSTREAM.format(upstream=upstream), "superlink"
    if resolver is not None:
        ipaddress.ip_address(resolver)
        block, target = _RESOLVED.format(resolver=resolver, upstream=upstream), "$superlink"
    return _TEMPLATE.format(
        listen=listen,
        certificate=_path("certificate", certificate),
        key=_path("key", key),
        folder=_path("runtime_folder", runtime_folder),
        access_log=f'"{_path("access_log", access_log)}"',
        scheme="http" if upstream_ca is None else "https",
        target=target,
        upstream_block=block,
        proxy_tls=proxy_tls,
        body_limit=f'include "{_path("certificate", certificate.with_name(LIMITS))}";'
        if largest_body is None
        else render_limit(largest_body),
    )


def largest_body(terms: Terms) -> int:
    """Return how many bytes the largest message of a run has: a sum of the model's size.

    Raises:
        ValueError: The terms' model is unknown.
    """
    from coinflower.learning import build_model, count_parameters

    model = build_model(terms.model, classes=terms.classes)
    return _BYTES_A_PARAMETER * count_parameters(model) + _LEAST_BODY


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
