"""The owner's page in a real browser: its figures, its layout, its buttons."""

from __future__ import annotations

import hashlib
import http.server
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coinflower.accounting.analyses.baselines import WeakClientSampling
from coinflower.accounting.ledger.entries import Budget
from coinflower.accounting.ledger.ledger import Ledger
from coinflower.accounting.ledger.stops import read_stops
from coinflower.accounting.mechanism import Round
from coinflower.accounting.rounding import rounded_down, rounded_up
from coinflower.client.page.ledger_snapshot import Reader
from coinflower.client.page.server import PageServer
from coinflower.client.page.view import Subject
from coinflower.client.participant import Participant
from coinflower.learning import Records, SecureRandom
from coinflower.protocol.modes import Mode
from tests.support.builders import make_policy
from tests.support.layout import require_sound_layout

DELTA = 1e-5
BUDGET = Budget(epsilon=8.0, delta=DELTA)
PILOT, STUDY = (
    f"{name}#{hashlib.sha256(name.encode()).hexdigest()}" for name in ("pilot", "chest-x-ray")
)
ENTER, TAB = "\ue007", "\ue004"


@dataclass(frozen=True, kw_only=True)
class Office:
    """A data owner with a history, a client and a page."""

    ledger: Ledger
    page: PageServer

    @property
    def url(self) -> str:
        return self.page.url

    @property
    def home(self) -> str:
        return self.page.url.partition("?")[0]

    def paused(self) -> bool:
        return read_stops(self.ledger.path).paused_since is not None

    def tamper(self) -> None:
        outside = sqlite3.connect(self.ledger.path)
        outside.execute("DROP TRIGGER entries_are_never_changed")
        outside.execute("UPDATE entries SET coin = 1 - coin WHERE seq = 4")
        outside.commit()
        outside.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder whose name stands on the page, and in the documents' picture of it."""
    with tempfile.TemporaryDirectory(prefix="ledgers-") as name:
        yield Path(name)


@pytest.fixture
def office(browser: Any, folder: Path) -> Iterator[Office]:
    pilot = WeakClientSampling(Round(p=0.5, q=0.05, d=1200, noise_multiplier=1.4))
    study = WeakClientSampling(Round(p=0.3, q=0.05, d=1200, noise_multiplier=1.3))
    path = folder / "ward7.db"
    policy = make_policy(
        data_set="Ward 7, radiology",
        data="images",
        ledger=path,
        declared_size=1200,
        modes=[Mode.UNTRUSTED, Mode.QUIET],
        largest_q=0.1,
        least_noise_multiplier=1.2,
        budget={"epsilon": BUDGET.epsilon, "delta": BUDGET.delta},
    )
    data = Records(inputs=np.zeros((3, 8, 8), np.float32), targets=np.zeros(3, np.int64))
    with Ledger.create(path, policy.data_set) as ledger:
        ledger.reserve(PILOT, pilot, 60, BUDGET)
        ledger.flip_all(PILOT, range(1, 61))
        ledger.reserve(STUDY, study, 200, BUDGET)
        ledger.flip_all(STUDY, range(1, 141))
        subject = Subject(
            reader=Reader(path=path),
            delta=DELTA,
            policy=policy,
            participant=Participant(policy, ledger, data, SecureRandom()),
            server="fl.example.org:8443",
            joined=lambda: True,
        )
        with PageServer("127.0.0.1:0", subject) as page:
            yield Office(ledger=ledger, page=page)
            browser.leave()


def test_the_figures_on_the_page_are_the_ledgers(browser: Any, office: Office) -> None:
    browser.open(office.url)
    spent, reserved = office.ledger.spent(DELTA), office.ledger.reserved_epsilon(DELTA)
    assert browser.value("#spent") == spent
    assert browser.text("#spent") == rounded_up(spent)
    assert browser.value("#reserved") == reserved - spent
    assert browser.value("#left") == BUDGET.epsilon - reserved
    assert browser.text("#left") == rounded_down(BUDGET.epsilon - reserved)
    assert (browser.text("#played"), browser.text("#agreed")) == ("140", "60")
    affordable = int(browser.text("#affordable").replace(",", ""))
    terms = office.ledger.tallies()[0].terms
    assert not office.ledger.would_exceed(terms, affordable - 60, BUDGET.epsilon, DELTA)
    assert office.ledger.would_exceed(terms, affordable - 59, BUDGET.epsilon, DELTA)
    rows = browser.run(
        "return [...document.querySelectorAll('tbody tr')].map((row) => "
        "[row.dataset.experiment, parseInt(row.cells[1].innerText)])"
    )
    assert rows == [[STUDY, 140], [PILOT, 60]]
    widths = browser.run(
        "const width = (kind) => document.querySelector(`.gauge .${kind}`).getBBox().width;"
        "return ['spent', 'reserved', 'free'].map(width)"
    )
    assert widths[0] / widths[2] == pytest.approx(spent / BUDGET.epsilon, abs=2e-3)
    assert widths[1] / widths[2] == pytest.approx((reserved - spent) / BUDGET.epsilon, abs=2e-3)
    assert browser.text("#head") == office.ledger.verify().head
    browser.save_picture("page.png", width=1200)


def test_the_page_follows_the_ledger_without_taking_the_focus_away(
    browser: Any, office: Office
) -> None:
    browser.open(office.url)
    browser.run("window.mark = 1; document.querySelector('#control details').open = true")
    browser.run("document.querySelector('.danger').focus()")
    office.ledger.flip(STUDY, 150)
    browser.wait(lambda: browser.text("#played") == "141")
    assert browser.value("#spent") == office.ledger.spent(DELTA)
    office.ledger.reserve("third#ef", office.ledger.tallies()[0].terms, 5, BUDGET)
    browser.wait(lambda: "third" in browser.text("#control"))
    assert browser.run("return window.mark") == 1
    assert browser.run("return document.activeElement.className") == "danger"
    assert browser.run("return document.querySelectorAll('details[open]').length") == 1


@pytest.mark.parametrize("tampered", [False, True])
def test_the_layout_holds_and_can_be_read_at_any_width(
    browser: Any, office: Office, tampered: bool
) -> None:
    longest = "long" * 16 + "#" + "ef" * 32
    office.ledger.reserve(longest, office.ledger.tallies()[0].terms, 5, BUDGET)
    if tampered:
        office.tamper()
    browser.open(office.url)
    browser.await_loaded("#trouble" if tampered else "#budget")
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    require_sound_layout(browser)


def test_a_ledger_that_is_tampered_with_turns_the_page_red(browser: Any, office: Office) -> None:
    browser.open(office.url)
    assert "Ledger in order" in browser.text("#verified")
    office.tamper()
    browser.await_loaded("#trouble")
    assert "Ledger not in order" in browser.text("#verified")
    assert "cannot be trusted" in browser.text("#trouble")
    red = browser.run("return getComputedStyle(document.querySelector('#verified')).color")
    red, green, blue = (int(part) for part in red[4:-1].split(","))
    assert red > 2 * max(green, blue)
    assert browser.run("return document.querySelectorAll('#spent, .gauge, #csv').length") == 0


def test_the_buttons_are_reached_and_pressed_by_keyboard(browser: Any, office: Office) -> None:
    browser.open(office.url)
    browser.type(TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    browser.type(TAB)
    assert browser.run("return document.activeElement.id") == "pause"
    browser.type(ENTER)
    browser.wait(office.paused)
    browser.wait(lambda: browser.text("#resume") == "Resume")
    assert "Paused" in browser.text("header")
    browser.press("#resume")
    assert not office.paused()
    browser.type(TAB, TAB, TAB, ENTER)
    browser.wait(lambda: browser.run("return document.querySelector('details').open"))
    browser.type(TAB, ENTER)
    browser.wait(lambda: "chest-x-ray" in read_stops(office.ledger.path).left)
    browser.wait(lambda: "left" in browser.text("tbody tr"))
    assert [tally.reserved_rounds for tally in office.ledger.tallies()] == [140, 60]
    assert browser.run("return document.querySelectorAll('details').length") == 0


def test_everything_has_a_name_that_can_be_read_out(browser: Any, office: Office) -> None:
    browser.open(office.url)
    nameless = browser.run(
        "return [...document.querySelectorAll('button, a, summary, section, svg, table')]"
        ".filter((one) => !(one.ariaLabel || one.textContent.trim())).map((one) => one.outerHTML)"
    )
    assert nameless == []
    labelled = "section:not([aria-labelledby])"
    assert browser.run("return document.querySelectorAll(arguments[0]).length", labelled) == 0
    assert browser.run("return document.documentElement.lang") == "en"
    assert browser.run("return document.querySelectorAll('h1').length") == 1
    assert browser.run("return document.querySelectorAll('th:not([scope])').length") == 0


@pytest.fixture
def elsewhere(office: Office) -> Iterator[str]:
    """Another site, whose page presses the button as soon as it is opened."""
    trap = (
        f'<form method="post" action="{office.home}pause"><input name="key" value="guess"></form>'
        "<script>document.forms[0].submit()</script>"
    )

    class Trap(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(trap.encode())

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Trap) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://other.example:{server.server_address[1]}/"
        server.shutdown()


def test_another_sites_page_cannot_press_the_button(
    browser: Any, office: Office, elsewhere: str
) -> None:
    browser.open(elsewhere)
    browser.wait(lambda: "Requests from other pages are refused" in browser.text("body"))
    assert not office.paused()
    browser.complaints()  # of the refusal, and of what the other site lacks


def test_a_foreign_name_that_points_here_shows_nothing(browser: Any, office: Office) -> None:
    browser.open(f"http://other.example:{office.page.port}/")
    assert "not served under that name" in browser.text("body")
    assert "Ward 7" not in browser.text("body")
    browser.complaints()  # of the refusal
