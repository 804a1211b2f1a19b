"""Pages in a browser are not answered by a SuperLink; programs are."""

from __future__ import annotations

import httpx
import pytest

from coinflower.deploy.flower.loopback import LOOPBACK
from coinflower.deploy.flower.superlink import Superlink

CALL = "/v1/control/list-runs"
PROTOBUF = {"Content-Type": "application/protobuf", "Accept": "application/protobuf"}


@pytest.mark.parametrize("path", [CALL, "/v1/control/start-run", "/v1/fleet/pull-messages"])
def test_a_page_led_here_under_its_own_name_is_refused(superlink, path):
    page = {"Host": "evil.example", "Origin": "http://evil.example"}
    answer = superlink.post(path, headers=PROTOBUF | page)
    assert answer.status_code == 403
    assert "Pages in browsers" in answer.text


def test_a_program_is_answered(superlink):
    assert superlink.post(CALL, headers=PROTOBUF).status_code == 200
    assert superlink.get("/health").status_code == 200


@pytest.fixture(scope="module")
def superlink(tmp_path_factory):
    with (
        Superlink(tmp_path_factory.mktemp("superlink")) as running,
        httpx.Client(base_url=f"http://{running.address}", trust_env=False) as client,
    ):
        assert running.address.startswith(LOOPBACK)
        yield client
