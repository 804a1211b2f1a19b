"""Hosts in network namespaces: a switch, cables to cut, programs that end with the test."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.waiting import PATIENCE

BINARIES = Path(sys.executable).parent
PACKAGES = {"nginx": "nginx-light", "ip": "iproute2", "iptables": "iptables"}
SERVER_NAME = "fl.example.org"
TO_THE_END = 500
"""Seconds within which whatever is left of a run is over, or an attack."""


def ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True, timeout=20)


class Host:
    """A machine with an address, a folder of its own, and its own loopback.

    With ``line``, the arguments of ``slow_link.run``, its cable is a slow and lossy line.
    """

    def __init__(self, network, name, address, folder, line=None):
        self.namespace = f"{network.prefix}{name}"
        self.name = name
        self.address = address
        self.folder = folder
        self._switch = network.switch
        self._cable = f"p-{name}"
        self._started = []
        folder.mkdir()
        ip("netns", "add", self.namespace)
        ip("-n", self.namespace, "link", "set", "lo", "up")
        if line is None:
            ip("link", "add", "eth0", "netns", self.namespace, "type", "veth",
               "peer", "name", self._cable, "netns", self._switch)  # fmt: skip
        else:
            self._lay_line(line)
        ip("-n", self._switch, "link", "set", self._cable, "master", "br0", "up")
        ip("-n", self.namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        ip(
            "-n",
            self.namespace,
            "addr",
            "add",
            f"{network.ipv6(address)}/64",
            "dev",
            "eth0",
            "nodad",
        )
        ip("-n", self.namespace, "link", "set", "eth0", "up")
        # `ip netns exec` shows this file as /etc/hosts.
        self._names = Path("/etc/netns") / self.namespace / "hosts"
        self._names.parent.mkdir(parents=True)
        self.resolve(network.server)

    def resolve(self, *addresses):
        """Let this host's DNS, so to speak, know the server by these addresses."""
        known = "".join(f"{address} {SERVER_NAME}\n" for address in addresses)
        self._names.write_text(f"127.0.0.1 localhost\n{known}")

    def _lay_line(self, line):
        program = Path(__file__).with_name("slow_link.py")
        devices = {"near": "eth-slow", "far": self._cable}
        command = ["ip", "netns", "exec", self._switch, sys.executable, str(program)]
        link = subprocess.Popen(
            [*command, json.dumps(devices | line)], stdout=subprocess.PIPE, start_new_session=True
        )
        self._started.append(link)
        assert link.stdout.readline() == b"ready\n"
        ip("-n", self._switch, "link", "set", "eth-slow", "netns", self.namespace, "name", "eth0")

    def _command(self, line):
        return ["ip", "netns", "exec", self.namespace, "sh", "-c", line]

    def _environment(self):
        path = f"{BINARIES}:{os.environ['PATH']}:/usr/sbin:/sbin"
        return {**os.environ, "PATH": path, "COLUMNS": "200", "HOME": str(self.folder)}

    def run(self, lines, *, timeout=PATIENCE, check=True):
        """Run shell commands to their end and return how the last one went."""
        done = subprocess.run(
            self._command(lines),
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert not check or done.returncode == 0, f"{lines}\n{done.stdout}{done.stderr}"
        return done

    def python(self, code, *arguments, timeout=PATIENCE):
        """Run a Python program on this host and return what it printed, as JSON."""
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-c", code]
        done = subprocess.run(
            [*command, *map(str, arguments)],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self, line, log):
        """Start a program that writes into a log of this host."""
        with (self.folder / log).open("ab") as file:
            program = subprocess.Popen(
                self._command(f"exec {line}"),
                cwd=self.folder,
                env=self._environment(),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(program)
        return program

    def log(self, name):
        return (self.folder / name).read_text(errors="replace")

    def news(self, name):
        """Return a function that reads what a log holds beyond what it holds now."""
        before = len(self.log(name))
        return lambda: self.log(name)[before:]

    def cut_cable(self):
        ip("-n", self._switch, "link", "set", self._cable, "down")

    def mend_cable(self):
        ip("-n", self._switch, "link", "set", self._cable, "up")

    def tell_to_stop(self):
        for program in self._started:
            if program.poll() is None:
                program.send_signal(signal.SIGTERM)

    def remove(self):
        for program in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(15)
        left = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False
        )
        for pid in left.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, timeout=20)
        shutil.rmtree(self._names.parent, ignore_errors=True)


class Network:
    """A switch and the hosts on it; nothing of it reaches the machine's own network."""

    def __init__(self, folder):
        self.prefix = f"cfh{os.getpid()}-"
        self.switch = f"{self.prefix}sw"
        self.server = "10.77.0.1"
        self.folder = folder
        self.hosts = []
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "br0", "up")

    def add(self, name, *, line=None):
        address = f"10.77.0.{len(self.hosts) + 1}"
        host = Host(self, name, address, self.folder / name, line)
        self.hosts.append(host)
        return host

    @staticmethod
    def ipv6(address):
        return f"fd77::{address.rpartition('.')[2]}"

    def remove(self):
        for host in self.hosts:
            host.tell_to_stop()
        for host in self.hosts:
            host.remove()
        subprocess.run(["ip", "netns", "del", self.switch], check=False, timeout=20)
        with contextlib.suppress(OSError):
            Path("/etc/netns").rmdir()


def wait_until(condition, what):
    """Wait until a condition holds; what it was is told if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.2)
