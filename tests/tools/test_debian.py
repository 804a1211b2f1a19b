"""Debian's packages, with a stand-in for apt-get that takes notes."""

import os
import subprocess

import pytest

from coinflower.deploy.errors import DeploymentError
from tests.support import debian


@pytest.fixture
def policy(tmp_path, monkeypatch):
    """Return where the policy of services is looked for, on a machine that lacks a program."""
    path = tmp_path / "policy-rc.d"
    monkeypatch.setattr(debian, "_POLICY", path)
    monkeypatch.setattr(debian, "_LOCK", tmp_path / "lock")
    monkeypatch.setattr(debian, "find_program", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(debian, "_missing", lambda packages: list(packages.values()))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return path


def test_a_package_that_is_installed_starts_no_service(policy, monkeypatch):
    answers = {}

    def apt_get(what, *_):
        answers[what] = subprocess.run([policy], check=False).returncode if policy.exists() else 0

    monkeypatch.setattr(debian, "_apt_get", apt_get)
    debian.install_programs({"nginx": "nginx-light"})
    assert answers == {"update": 0, "install": 101}
    assert not policy.exists()


def test_the_machines_own_policy_of_services_is_kept(policy, monkeypatch):
    policy.write_text("its own")
    monkeypatch.setattr(debian, "_apt_get", lambda *_: None)
    debian.install_programs({"nginx": "nginx-light"})
    assert policy.read_text() == "its own"


def test_a_failed_installation_leaves_no_policy_behind(policy, monkeypatch):
    def apt_get(what, *_):
        if what == "install":
            raise DeploymentError("no network")

    monkeypatch.setattr(debian, "_apt_get", apt_get)
    with pytest.raises(DeploymentError, match="no network"):
        debian.install_programs({"nginx": "nginx-light"})
    assert not policy.exists()
