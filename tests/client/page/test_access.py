"""Who may see the owner's page and press its buttons, over real HTTP."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from coinflower.accounting.ledger.entries import to_csv, to_json
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.client.page.access import Access, parse_address
from coinflower.client.page.ledger_snapshot import Reader
from coinflower.client.page.server import PageServer
from coinflower.client.page.view import Subject
from coinflower.client.participant import Participant
from coinflower.protocol.modes import Mode
from coinflower.protocol.terms import Terms

Make = Callable[..., Terms]
# One client for all: each reads the authorities of the system, which takes longer than a test.
web = httpx.Client(verify=False, trust_env=False, timeout=60)


@contextlib.contextmanager
def serving(participant: Participant, address: str = "127.0.0.1:0") -> Iterator[PageServer]:
    policy = participant.policy
    subject = Subject(
        reader=Reader(path=policy.ledger),
        delta=policy.budget.delta,
        policy=policy,
        participant=participant,
    )
    with PageServer(address, subject) as server:
        yield server


@pytest.fixture
def participant(owner: Any, make_terms: Make) -> Participant:
    opened: Participant = owner.open()
    opened.enrol(make_terms(Mode.QUIET))
    return opened


@pytest.fixture
def page(participant: Participant) -> Iterator[PageServer]:
    with serving(participant) as server:
        yield server


def key_to(page: PageServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {page.access.token}"}


def get(page: PageServer, path: str = "/", **headers: str) -> httpx.Response:
    return web.get(f"{home(page)}{path}", headers={**key_to(page), **headers})


def home(page: PageServer) -> str:
    return f"http://127.0.0.1:{page.port}"


def paused(participant: Participant) -> bool:
    reader = Reader(path=participant.policy.ledger)
    snapshot = reader.look().snapshot
    assert snapshot is not None
    return snapshot.stops.paused_since is not None


def press(page: PageServer, what: str, **changes: Any) -> httpx.Response:
    fields = {"key": page.access.form_key, **changes.pop("data", {})}
    headers = {**key_to(page), "Origin": home(page), **changes.pop("headers", {})}
    present = {name: value for name, value in headers.items() if value is not None}
    return web.post(f"{home(page)}/{what}", data=fields, headers=present, **changes)


def test_the_buttons_work_from_the_pages_own_origin(
    page: PageServer, participant: Participant
) -> None:
    assert press(page, "pause").status_code == 303
    assert paused(participant)
    assert press(page, "resume").status_code == 303
    assert not paused(participant)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"headers": {"Origin": "http://other.example"}}, 403),
        ({"headers": {"Origin": "null"}}, 403),
        ({"headers": {"Origin": None}}, 403),
        ({"headers": {"Sec-Fetch-Site": "cross-site"}}, 403),
        ({"headers": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}}, 403),
        ({"headers": {"Host": "other.example"}}, 421),
        ({"headers": {"Host": "other.example", "Origin": "http://other.example"}}, 421),
        ({"headers": {"Host": ""}}, 421),
        ({"data": {"key": "guessed"}}, 403),
        ({"data": {"key": "å"}}, 403),
        ({"data": {"filler": "x" * 5000}}, 413),
    ],
)
def test_a_button_pressed_by_anybody_else_does_nothing(
    page: PageServer, participant: Participant, changes: dict[str, Any], status: int
) -> None:
    assert press(page, "pause", **changes).status_code == status
    assert not paused(participant)


def test_a_form_without_a_key_does_nothing(page: PageServer, participant: Participant) -> None:
    answer = web.post(f"{home(page)}/pause", headers={**key_to(page), "Origin": home(page)})
    assert answer.status_code == 403
    assert not paused(participant)


def test_a_link_cannot_press_a_button(page: PageServer, participant: Participant) -> None:
    assert get(page, "/pause").status_code == 405
    assert not paused(participant)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "other.example"}, 421),
        ({"Host": "192.0.2.7"}, 421),
        ({"Host": "localhost:9000"}, 200),
        ({"Host": "[::1]:9000"}, 200),
        ({"Origin": "http://other.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
    ],
)
def test_other_sites_cannot_read_the_page(
    page: PageServer, headers: dict[str, str], status: int
) -> None:
    for path in ("/", "/version", "/ledger.csv", "/static/page.js"):
        assert get(page, path, **headers).status_code == status


def test_every_answer_carries_the_strict_headers(page: PageServer) -> None:
    for path in ("/", "/version", "/ledger.json", "/static/page.css", "/nowhere"):
        headers = get(page, path).headers
        content = headers["content-security-policy"]
        assert content.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "frame-ancestors 'none'" in content
        assert "unsafe" not in content
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "0.0.0.0:0"])
def test_nothing_is_shown_and_no_button_works_without_the_token(
    participant: Participant, address: str
) -> None:
    with serving(participant, address) as server:
        assert server.access.token in server.url
        assert bool(server.warning) == (address == "0.0.0.0:0")
        for path in ("/", "/version", "/ledger.csv", "/static/page.css", "/?token=guessed"):
            answer = web.get(f"{home(server)}{path}")
            assert answer.status_code == 401
            assert "ward 7" not in answer.text
        assert press(server, "pause", headers={"Authorization": None}).status_code == 401
    assert not paused(participant)


def test_the_link_sets_a_strict_cookie_and_takes_the_token_out_of_the_address(
    page: PageServer, participant: Participant
) -> None:
    with httpx.Client(base_url=home(page), verify=False, timeout=60) as browser:
        answer = browser.get(page.url)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert "ward 7" in browser.get("/").text
        key = page.access.form_key
        origin = {"Origin": home(page)}
        assert browser.post("/pause", data={"key": key}, headers=origin).status_code == 303
    assert paused(participant)


def test_programs_bring_the_token_in_a_header(page: PageServer) -> None:
    for token, status in ((page.access.token, 200), ("guessed", 401)):
        assert get(page, Authorization=f"Bearer {token}").status_code == status


def test_bound_elsewhere_a_name_that_anybody_could_point_here_is_refused() -> None:
    access = Access(host="0.0.0.0")
    for host in ("192.0.2.7:8600", "[2001:db8::1]:8600", "localhost:8600", socket.gethostname()):
        access.check("GET", {"host": host})
    with pytest.raises(Exception, match="not served under that name"):
        access.check("GET", {"host": "other.example:8600"})


def test_only_experiments_of_this_client_can_be_left(
    page: PageServer, participant: Participant, make_terms: Make
) -> None:
    assert press(page, "leave", data={"experiment": "unknown"}).status_code == 404
    assert press(page, "leave", data={"experiment": ""}).status_code == 404
    name = make_terms(Mode.QUIET).experiment
    assert press(page, "leave", data={"experiment": name}).status_code == 303
    assert [tally.reserved_rounds for tally in participant.ledger.tallies()] == [0]
    assert press(page, "leave", data={"experiment": name}).status_code == 404


def test_the_downloads_are_the_ledgers_own_exports(
    page: PageServer, participant: Participant
) -> None:
    table, record = (get(page, f"/ledger.{form}") for form in ("csv", "json"))
    assert table.text == to_csv(participant.ledger.history())
    assert json.loads(record.text) == json.loads(
        to_json(participant.ledger.data_set, participant.ledger.history())
    )
    assert table.headers["content-disposition"] == "attachment"


def test_a_page_without_a_client_has_no_buttons(owner: Any) -> None:
    with PageServer("127.0.0.1:0", Subject(reader=Reader(path=owner.ledger), delta=1e-5)) as server:
        assert "<button" not in get(server).text
        assert press(server, "pause").status_code == 404
        assert press(server, "leave").status_code == 404


def test_the_page_claims_no_more_than_its_figures_and_hashes_show(page: PageServer) -> None:
    text = " ".join(get(page).text.split())
    assert "against everybody but the server in the other private ones" in text
    assert "mode none is not counted" in text
    assert "only that shows a file that was rewritten as a whole" in text


def test_the_page_says_which_cap_the_policy_asks_for(owner: Any) -> None:
    for limit, told in ((None, "none needed"), (1.5, "1.5")):
        owner.change(largest_cap=limit)
        with serving(owner.open()) as server:
            text = " ".join(get(server).text.split())
        assert re.search(rf"Cap on the whole sum.{{0,80}}at most.{{0,20}}>{told}<", text)


def test_names_in_the_ledger_are_never_taken_for_html(owner: Any, make_terms: Make) -> None:
    cost = make_terms(Mode.QUIET).round_cost(30)
    assert cost is not None
    with Ledger.open(owner.ledger) as ledger:
        ledger.reserve("<script>alert(1)</script>", cost, 2, owner.open().policy.budget)
    with serving(owner.open()) as server:
        text = get(server).text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_port_in_use_is_told_in_a_sentence(page: PageServer, participant: Participant) -> None:
    with (
        pytest.raises(ValueError, match=f"cannot be served at 127.0.0.1:{page.port}"),
        serving(participant, f"127.0.0.1:{page.port}"),
    ):
        pass


@pytest.mark.parametrize("address", ["8600", ":8600", "localhost", "localhost:x", "h:70000", "::1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="page = "):
        parse_address(address)


def test_addresses_name_host_and_port() -> None:
    assert parse_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_address("[::1]:8600") == ("::1", 8600)
