"""A Docker engine of one's own on a bare Debian machine, for tests of the containers.

Installs what is missing from Debian's packages, runs ``dockerd`` in a network namespace of its own
(its uplink is slirp4netns, so the machine's own interfaces and firewall stay as they are) and makes
the two base images without a registry: ``debian:bookworm-slim`` with mmdebstrap, and from it a
stand-in for ``python:3.11-slim-bookworm`` (Debian's own Python 3.11). Everything ends with the
``with`` block; what is slow to make stays in the cache folder. Needs root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Self

from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.programs import search_path
from tests.support.debian import install_programs

DEBIAN_IMAGE = "debian:bookworm-slim"
PYTHON_IMAGE = "python:3.11-slim-bookworm"
CACHE = Path(os.environ.get("COINFLOWER_CACHE", Path.home() / ".cache" / "coinflower"))

_PROGRAMS = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "slirp4netns": "slirp4netns",
    "ip": "iproute2",
}
# What is lost in a crash is made anew; syncing every file takes most of the time.
_HASTY = "force-unsafe-io"
_MIRROR = "http://deb.debian.org/debian"
_PLUGINS = ("docker-compose", "docker-buildx")
# slirp4netns answers questions for names here, with what the machine itself would answer.
_NAME_SERVER = "10.0.2.3"
_CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_START_SECONDS = 300.0

_STAND_IN = f"""\
FROM {DEBIAN_IMAGE}
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends \\
      ca-certificates python3 python3-pip python3-venv && \\
    rm -rf /var/lib/apt/lists/* /usr/lib/python3*/EXTERNALLY-MANAGED && \\
    ln -s python3 /usr/bin/python
COPY wheels /opt/wheels
COPY ca.crt {_CA_BUNDLE}
COPY pip.conf /etc/pip.conf
"""
_PIP = f"[global]\ncert = {_CA_BUNDLE}\nfind-links = /opt/wheels\n"


class EngineError(DeploymentError):
    """The engine, or something it needs, could not be had; says what."""


class Engine:
    """A Docker engine with compose and buildx that lives as long as its ``with`` block.

    Args:
        cache: For packages, base images and the engine's own layers; kept.
        wheels: Folder of Python packages that the stand-in for the Python image finds first.
    """

    def __init__(self, cache: Path = CACHE, wheels: Path | None = None) -> None:
        self._cache = cache
        self._wheels = wheels
        self._namespace = f"coinflower-{os.getpid()}"
        self._folder = Path(tempfile.mkdtemp(prefix="coinflower-engine-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock: IO[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that lead the ``docker`` command to this engine."""
        return {
            "DOCKER_HOST": f"unix://{self._folder}/docker.sock",
            "DOCKER_CONFIG": str(self._cache / "docker-config"),
            "DOCKER_BUILDKIT": "1",
        }

    @property
    def inside(self) -> list[str]:
        """Words before a command that is to run where published ports are."""
        return ["nsenter", f"--net=/var/run/netns/{self._namespace}"]

    def __enter__(self) -> Self:
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self._cache / "lock")
            if os.geteuid() != 0:
                raise EngineError("A container engine can only be started by root.")
            install_programs(_PROGRAMS)
            # Each of these waits for the network most of the time.
            with ThreadPoolExecutor() as pool:
                debian = pool.submit(self._debian)
                plugins = pool.submit(install_plugins, self._cache)
                self._start()
                plugins.result()
                self._make_images(debian.result())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def docker(self, *arguments: str, timeout: float = 600, stdin: Path | None = None) -> str:
        """Run ``docker`` and return what it printed.

        Raises:
            EngineError: It failed; with its last lines.
        """
        command = ["docker", *arguments]
        if stdin is None:
            return _run(command, environment=self.environment, timeout=timeout)
        with stdin.open("rb") as file:
            return _run(command, environment=self.environment, timeout=timeout, stdin=file.fileno())

    def close(self) -> None:
        """End the engine, its containers, its namespace and its mounts."""
        if self._lock is None:
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        if (Path("/var/run/netns") / self._namespace).exists():
            _run(["ip", "netns", "delete", self._namespace])
        _unmount_below(self._folder)
        _unmount_below(self._cache)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.close()
        self._lock = None

    def _start(self) -> None:
        _run(["ip", "netns", "add", self._namespace])
        _run([*self.inside, "ip", "link", "set", "lo", "up"])
        uplink = ["slirp4netns", "--configure", "--mtu=65520", "--disable-host-loopback"]
        uplink += ["--netns-type=path", f"/var/run/netns/{self._namespace}", "tap0"]
        self._spawn(uplink, "slirp4netns.log")
        daemon = [*self.inside, "dockerd", "--host", self.environment["DOCKER_HOST"]]
        daemon += ["--data-root", str(self._cache / "docker-data")]
        daemon += ["--exec-root", str(self._folder / "exec")]
        daemon += ["--pidfile", str(self._folder / "docker.pid"), "--dns", _NAME_SERVER]
        self._spawn(daemon, "dockerd.log")
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.docker("version")
                return
            except EngineError:
                ended = [one for one in self._processes if one.poll() is not None]
                if ended or time.monotonic() > deadline:
                    log = (self._folder / "dockerd.log").read_text(errors="replace")
                    raise EngineError(f"The engine did not start:\n{log[-2000:]}") from None
            time.sleep(0.2)

    def _spawn(self, command: Sequence[str], log: str) -> None:
        with (self._folder / log).open("ab") as file:
            self._processes.append(
                subprocess.Popen(
                    command,
                    # dockerd and slirp4netns start iptables, containerd and others by name.
                    env={**os.environ, "PATH": search_path()},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                )
            )

    def _make_images(self, debian: Path) -> None:
        if not self.docker("images", "--quiet", DEBIAN_IMAGE):
            self.docker("import", "-", DEBIAN_IMAGE, stdin=debian)
        context = self._folder / "stand-in"
        context.mkdir()
        (context / "wheels").mkdir()
        if self._wheels is not None:
            shutil.copytree(self._wheels, context / "wheels", dirs_exist_ok=True)
        shutil.copy(_CA_BUNDLE, context / "ca.crt")
        (context / "pip.conf").write_text(_PIP)
        (context / "Dockerfile").write_text(_STAND_IN)
        self.docker("build", "--quiet", "--tag", PYTHON_IMAGE, str(context))
        shutil.rmtree(context)

    def _debian(self) -> Path:
        """Return the archive of a smallest Debian, made when it is not in the cache."""
        archive = self._cache / "bookworm.tar"
        if not archive.exists():
            draft = self._cache / "draft.tar"
            options = ["--quiet", "--variant=minbase", f"--dpkgopt={_HASTY}"]
            _run(["mmdebstrap", *options, "bookworm", str(draft), _MIRROR], timeout=1200)
            draft.replace(archive)
        return archive


def _lock(path: Path) -> IO[bytes]:
    file = path.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise EngineError(f"Another engine is at work with {path.parent}.") from None
    return file


def install_plugins(cache: Path) -> Path:
    """Unpack compose and buildx from the next Debian: this one has neither. Needs no root.

    Returns:
        The folder to name in ``DOCKER_CONFIG``.

    Raises:
        EngineError: The packages cannot be had.
    """
    config = cache / "docker-config"
    target = config / "cli-plugins"
    if all((target / name).exists() for name in _PLUGINS):
        return config
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="coinflower-plugins-") as name:
        work = Path(name)
        for part in ("lists", "cache/archives"):
            (work / part / "partial").mkdir(parents=True)
        keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
        source = work / "trixie.list"
        source.write_text(f"deb [signed-by={keyring}] {_MIRROR} trixie main\n")
        options = {
            "Dir::Etc::SourceList": source,
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": work / "lists",
            "Dir::Cache": work / "cache",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
        }
        apt = ["apt-get", "-qq", *(f"--option={key}={value}" for key, value in options.items())]
        _run([*apt, "update"])
        _run([*apt, "download", *_PLUGINS], folder=work)
        for package in work.glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(work / "root")])
        for plugin in _PLUGINS:
            draft = target / f".{plugin}"
            shutil.copy(next((work / "root").rglob(f"cli-plugins/{plugin}")), draft)
            draft.replace(target / plugin)
    return config


def _run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    timeout: float = 600,
) -> str:
    env = {**os.environ, "PATH": search_path(), "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            env={**env, **(environment or {})},
            cwd=folder,
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"{' '.join(command[:6])}: {error}") from error
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
        raise EngineError(f"{' '.join(command[:6])} failed ({done.returncode}):\n{last}")
    return done.stdout


def _unmount_below(folder: Path) -> None:
    """Unmount what the engine left mounted in a folder, the deepest first."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((one for one in points if one.startswith(f"{folder}/")), reverse=True):
        _run(["umount", "--lazy", point])
