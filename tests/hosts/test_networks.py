"""Networks of hospitals and banks: a proxy as the only way out, IPv6, a slow and lossy line.

The tests share one run and are in order: it starts with the first and is complete with the last.
"""

import json
import signal
from pathlib import Path

import pytest
from cryptography import x509

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.server.journal import read_metrics
from tests.hosts.federation import Federation
from tests.hosts.network import SERVER_NAME, wait_until
from tests.support.proxies import __file__ as proxy_program
from tests.support.tls import certificate
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.hosts

ROUNDS = 60
LINE = {"bits_per_second": 1e6, "seconds": 0.15, "loss": 0.02}
LOGIN = "ann:s3cret"
NEW_ADDRESS = "10.77.0.201"
CHANGES = [
    ("rounds = 400", f"rounds = {ROUNDS}"),
    ("least_clients = 2", "least_clients = 3"),
    ("reply_seconds = 20", "reply_seconds = 60"),
]


class Ward(Federation):
    """Three clients: one behind a proxy, one on IPv6, one at the end of a slow line."""

    def __init__(self, network):
        self.proxy = None
        server, self.middle = network.add("server"), network.add("proxy")
        self.enclosed, self.modern = network.add("ward-7"), network.add("ward-8")
        self.remote = network.add("ward-9", line=LINE)
        self.ipv6 = network.ipv6(server.address)
        clients = [self.enclosed, self.modern, self.remote]
        super().__init__(server, clients, rounds=ROUNDS, listen="[::]", names=[self.ipv6])

    def open(self):
        self.set_up(*CHANGES)
        self.server.run("ip6tables -A INPUT -p tcp --dport 8443 -j ACCEPT")

    def client_line(self, client):
        line = super().client_line(client)
        if client is self.enclosed:
            return f"env HTTPS_PROXY={self.url(LOGIN)} {line}"
        if client is self.modern:
            line = line.replace(SERVER_NAME, f"[{self.ipv6}]")
            return f"env HTTPS_PROXY=http://10.77.0.99:1 NO_PROXY=10.0.0.0/8,fd77::/16 {line}"
        return line

    def serve(self):
        super().serve("--stay")  # no machine is done before the last fault

    def url(self, login, port=3128):
        return f"http://{login}@{self.middle.address}:{port}"

    def start_proxy(self, **options):
        told = {"host": self.middle.address, "port": 3128, "login": LOGIN} | options
        line = f"python {proxy_program} '{json.dumps(told)}'"
        return self.middle.start(line, f"proxy-{told['port']}.log")

    def equip(self, client, index):
        super().equip(client, index)
        if client is self.enclosed:
            # The proxy is the only way out, and only it knows the server's address.
            client.run(f"iptables -A OUTPUT -o eth0 ! -d {self.middle.address} -j DROP")
            client.run("ip6tables -A OUTPUT -o eth0 -j DROP")
            client.resolve()
            self.proxy = self.start_proxy()

    def kept_out(self, login, port, sentence, log):
        line = super().client_line(self.enclosed)
        client = self.enclosed.start(f"env HTTPS_PROXY={self.url(login, port)} {line}", log)
        wait_until(lambda: sentence in self.enclosed.log(log), f"{sentence!r} in {log}")
        told = self.enclosed.log(log)
        assert "Joined" not in told
        assert "s3cret" not in told
        client.send_signal(signal.SIGTERM)
        assert client.wait(PATIENCE) == 0
        return told


@pytest.fixture(scope="module")
def ward(network):
    made = Ward(network)
    made.open()
    return made


def test_all_three_come_to_the_server(ward):
    wait_until(ward.all_online, "three nodes online")
    wait_until(lambda: ward.round() >= 1, "the first round")


def test_the_client_whose_only_way_out_is_a_proxy_goes_through_it(ward):
    way = f"through the proxy {ward.middle.address}:3128"
    assert way in ward.enclosed.log("client.log")
    assert "s3cret" not in ward.enclosed.log("client.log")
    assert f"CONNECT {SERVER_NAME}:8443 login=right" in ward.middle.log("proxy-3128.log")


def test_what_is_excepted_from_the_proxy_is_reached_directly_over_ipv6(ward):
    assert f"Joined the SuperLink at [{ward.ipv6}]:8443" in ward.modern.log("client.log")
    assert "proxy" not in ward.modern.log("client.log")


def test_a_wrong_password_for_the_proxy_is_told(ward):
    ward.kept_out("ann:no", 3128, "does not accept the user and password", "password.log")


def test_tls_inspection_is_refused_by_name_and_reads_nothing(ward):
    posing = certificate(
        ward.middle.folder / "posing", name=x509.DNSName(SERVER_NAME), signer="Clinic Inspection"
    )
    files = [str(Path(one).absolute()) for one in posing]
    ward.start_proxy(port=3129, behaviour="inspect", certificate=files)
    told = ward.kept_out(LOGIN, 3129, "but by 'CN=Clinic Inspection'", "inspected.log")
    assert f"exempt {SERVER_NAME}:8443 from TLS inspection" in told
    assert "nothing was sent" in told
    read = [line for line in ward.middle.log("proxy-3129.log").splitlines() if "read" in line]
    assert set(read) <= {"read b''"}


def test_a_proxy_that_was_away_and_then_cuts_a_connection_is_used_again(ward):
    news = ward.enclosed.news("client.log")
    ward.proxy.send_signal(signal.SIGTERM)
    ward.proxy.wait(PATIENCE)
    wait_until(lambda: "cannot be reached (through the proxy" in news(), "the complaint")
    at_proxy = ward.middle.news("proxy-3128.log")
    ward.proxy = ward.start_proxy(cut_after=10_000)
    wait_until(lambda: "answers again" in news(), "the client's return")
    wait_until(lambda: "cut" in at_proxy().splitlines(), "a connection that is cut")
    wait_until(lambda: "CONNECT" in at_proxy().rpartition("cut")[2], "another connection")


def test_a_server_that_gets_another_address_is_found_by_its_name(ward):
    news = ward.remote.news("client.log")
    ward.server.run(f"ip addr add {NEW_ADDRESS}/24 dev eth0")
    for host in (ward.middle, ward.remote):
        host.resolve(NEW_ADDRESS)
    ward.server.run(f"ip addr del {ward.server.address}/24 dev eth0")
    ward.server.run(f"ip addr add {NEW_ADDRESS}/24 dev eth0", check=False)
    wait_until(lambda: "answers again" in news(), "the client's return")
    wait_until(ward.all_online, "three nodes online")


def test_the_run_is_complete_and_the_slow_line_took_part(ward):
    wait_until(lambda: ward.status()["run"] == "finished", "the last round")
    ward.running.send_signal(signal.SIGTERM)
    assert ward.running.wait(PATIENCE) == 0, ward.server.log("server.log")
    rows = read_metrics(ward.server.folder / "state")
    assert rows[-1]["round"] == ROUNDS
    for client in ward.clients:
        assert "Traceback" not in client.log("client.log")
        with Ledger.open(client.folder / "ledger.db", read_only=True) as ledger:
            ledger.verify()
            entries = list(ledger.history())
        charges = [entry.round for entry in entries if entry.kind == "charge"]
        answers = [entry.round for entry in entries if entry.kind == "answer"]
        assert len(charges) == len(set(charges)) <= ROUNDS
        assert len(answers) == len(set(answers))
        assert set(answers) <= set(charges)
        assert answers
    assert sum(row["answered"] for row in rows) > ROUNDS / 2
