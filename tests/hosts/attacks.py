"""Programs that a hostile host runs against the gateway; each ends by itself and prints JSON."""

CONNECTS = """
import json, socket, sys
found = {}
for port in map(int, sys.argv[2:]):
    try:
        socket.create_connection((sys.argv[1], port), timeout=1.5).close()
        found[port] = True
    except OSError:
        found[port] = False
print(json.dumps(found))
"""

ASKS = """
import http.client, json, ssl, sys
found = {}
context = ssl.create_default_context(cafile="ca.pem")
for line in sys.argv[2:]:
    method, path = line.split(" ", 1)
    connection = http.client.HTTPSConnection(sys.argv[1], 8443, timeout=30, context=context)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        found[line] = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        found[line] = repr(error)
    connection.close()
print(json.dumps(found))
"""

CONTROLS = """
import hashlib, json, sys
from pathlib import Path
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
key = public_key_to_bytes(ec.generate_private_key(ec.SECP384R1()).public_key())
fab = Fab(hash_str=hashlib.sha256(b"x").hexdigest(), content=b"x")
control = ControlHttpClient.from_server_address(sys.argv[1], False, Path("ca.pem").read_bytes(), [])
found = []
for method, request in (
    (control.StartRun, StartRunRequest(fab=fab)),
    (control.RegisterNode, RegisterNodeRequest(public_key=key)),
    (control.ListNodes, ListNodesRequest()),
):
    try:
        method(request)
        found.append("done")
    except Exception as error:
        found.append(str(error)[:200])
print(json.dumps(found))
"""

PLAIN = """
import http.client, json, sys
connection = http.client.HTTPConnection(sys.argv[1], 8443, timeout=10)
connection.request("GET", "/health")
print(json.dumps(connection.getresponse().status))
"""

GARBAGE = """
import collections, json, os, socket, ssl, sys
context = ssl.create_default_context(cafile="ca.pem")
found = collections.Counter()
for number in range(60):
    try:
        raw = socket.create_connection((sys.argv[1], 8443), timeout=30)
    except OSError:
        found["not reached"] += 1
        continue
    try:
        if number % 2:
            raw = context.wrap_socket(raw, server_hostname=sys.argv[1])
        raw.sendall(os.urandom(20000))
        answer = raw.recv(1000)
        # An end, an alert of TLS, or an answer that says so.
        away = answer[:1] in (b"", bytes([21])) or b" 400 " in answer
        found["turned away" if away else repr(answer)] += 1
    except TimeoutError:
        found["kept waiting"] += 1
    except OSError:
        found["turned away"] += 1
    raw.close()
print(json.dumps(found))
"""

HUGE = """
import json, socket, ssl, sys
context = ssl.create_default_context(cafile="ca.pem")
def send(head, block, most):
    raw = socket.create_connection((sys.argv[1], 8443), timeout=60)
    with context.wrap_socket(raw, server_hostname=sys.argv[1]) as secure:
        secure.sendall(head)
        try:
            for _ in range(most // len(block)):
                secure.sendall(block)
            return secure.recv(100).split(b"\\r\\n")[0].decode()
        except TimeoutError:
            return "kept waiting"
        except OSError:
            return "closed"
head = f"POST /v1/fleet/push-object HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\n".encode()
known = head + b"Content-Length: 1073741824\\r\\n\\r\\n"
unknown = head + b"Transfer-Encoding: chunked\\r\\n\\r\\n"
piece = bytes(1 << 16)
chunk = b"10000\\r\\n" + piece + b"\\r\\n"
answers = [send(known, piece, 0), send(known, piece, 1 << 30), send(unknown, chunk, 1 << 30)]
print(json.dumps(answers))
"""

SLOW = """
import json, socket, ssl, sys, time
context = ssl.create_default_context(cafile="ca.pem")
seconds, each, addresses = float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
open_ = []
for number in range(each):
    for address in addresses:
        try:
            raw = socket.create_connection((sys.argv[1], 8443), 30, source_address=(address, 0))
            if number % 2:
                raw = context.wrap_socket(raw, server_hostname=sys.argv[1])
                raw.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\\r\\nX-Slow: ")
            else:
                raw.sendall(bytes([22, 3, 1, 2, 0, 1]))  # the first bytes of a TLS handshake
            open_.append(raw)
        except OSError:
            pass
opened = len(open_)
end = time.monotonic() + seconds
while time.monotonic() < end and open_:
    for one in list(open_):
        try:
            one.sendall(b"x")
        except OSError:
            open_.remove(one)
    time.sleep(1)
print(json.dumps([opened, len(open_)]))
"""

CROWDS = """
import json, socket, sys
open_ = []
for number in range(int(sys.argv[2])):
    try:
        open_.append(socket.create_connection((sys.argv[1], 8443), timeout=30))
    except ConnectionRefusedError:
        pass
print(json.dumps(len(open_)))
"""

EXPIRED = """
import datetime, http.server, ssl, sys
from pathlib import Path
from coinflower.deploy.keys import keys
class Past(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.now(tz) - datetime.timedelta(days=30)
keys.datetime = Past
folder = Path("expired")
keys.make_authority(folder, days=3650)
keys.make_server_certificate(folder, [sys.argv[1]], days=10)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(folder / "server.pem", folder / "server.key")
server = http.server.ThreadingHTTPServer((sys.argv[1], 8443), http.server.BaseHTTPRequestHandler)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
