"""The operator's page in a real browser: experiments, who is there, errors; nothing to press."""

from __future__ import annotations

import functools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from coinflower.client.page.server import SiteServer
from coinflower.deploy.machines.queue import ExperimentQueue
from coinflower.deploy.machines.serve import operators_page
from coinflower.deploy.machines.status_file import StatusFile
from coinflower.deploy.status_page.site import make_status_site
from coinflower.server.journal import Journal
from coinflower.server.settings import Settings
from tests.support.builders import make_terms
from tests.support.federations import REPORT
from tests.support.layout import require_sound_layout

LONG = "a-name-as-long-as-names-may-be-" + 33 * "x"


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server's folder as its page sees it."""

    folder: Path
    status_file: StatusFile
    page: SiteServer

    def submit(self, name: str) -> Journal:
        state = self.folder / name
        made = Settings(terms=make_terms(experiment=name), state=state, test_data="digits")
        ExperimentQueue(self.folder).enter(made)
        return Journal(state, insecure=False)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    status_file = StatusFile(tmp_path, "fl.example.org:8443")
    status_file.note({"ward-7": True, "ward-8": False}, 1, ["fraud"])
    with SiteServer("127.0.0.1:0", functools.partial(make_status_site, tmp_path)) as page:
        yield Served(folder=tmp_path, status_file=status_file, page=page)


def test_the_page_follows_the_experiments_of_a_server(browser: Any, served: Served) -> None:
    browser.open(served.page.url)
    browser.await_loaded("#experiments")
    assert "None yet" in browser.text("#experiments")
    assert "token" not in browser.driver.current_url
    assert browser.text("#online") == "1 node online"
    assert browser.text("#nodes dl").split("\n") == ["ward-7", "online", "ward-8", "away"]
    browser.run("window.mark = 1")

    journal = served.submit("fraud")
    journal.status("running", round_=1)
    journal.round(REPORT, {"accuracy": 0.75})
    served.submit("later")
    browser.wait(lambda: "75.0%" in browser.text("#experiment-fraud"))
    assert "running" in browser.text("#experiment-fraud")
    assert "queued" in browser.text("#experiment-later")
    assert browser.run("return window.mark") == 1

    ExperimentQueue(served.folder).note_failure("later", "Only 0 of at least 2 clients were there.")
    journal.refusals("1 of 2 clients refuse: <b>The planned rounds do not fit.</b>")
    browser.wait(lambda: "Only 0 of at least 2" in browser.text("#experiment-later"))
    assert "failed" in browser.text("#experiment-later")
    assert "<b>The planned rounds do not fit.</b>" in browser.text("#experiment-fraud")
    assert browser.run("return document.querySelectorAll('form, button, input').length") == 0
    browser.save_picture("status-page.png", width=900)


def test_the_layout_holds_and_can_be_read_at_any_width(browser: Any, served: Served) -> None:
    for name, state in (("fraud", "running"), (LONG, "finished")):
        journal = served.submit(name)
        journal.round(replace(REPORT, round=8), {"accuracy": 0.75, "macro_f1": 0.7})
        journal.status(state, round_=8)
    ExperimentQueue(served.folder).note_failure("fraud", "long" * 40)
    browser.open(served.page.url)
    browser.await_loaded("#experiments")
    require_sound_layout(browser)


def asked(url: str, token: str | None = None) -> Any:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        return json.load(answer)


def test_programs_get_the_same_figures_with_the_token_and_nobody_without(served: Served) -> None:
    served.submit("fraud").round(REPORT, {"accuracy": 0.75})
    url = f"http://127.0.0.1:{served.page.port}/status.json"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        asked(url)
    found = asked(url, served.page.access.token)
    assert found["nodes"] == {"ward-7": True, "ward-8": False}
    (experiment,) = found["experiments"]
    assert (experiment["round"], experiment["accuracy"]) == (1, 0.75)
    # What comes from coins, and what clients spend, is not told.
    told = json.dumps(found)
    assert not any(word in told for word in ("participants", "answered", "asked", "epsilon"))


def test_a_damaged_file_is_named(served: Served) -> None:
    served.submit("fraud").round(REPORT, None)
    (served.folder / "fraud" / "status.json").write_text("[")
    with pytest.raises(urllib.error.HTTPError, match="500") as caught:
        asked(f"http://127.0.0.1:{served.page.port}/status.json", served.page.access.token)
    assert "status.json is damaged" in caught.value.read().decode()


def test_the_link_is_for_the_servers_user_only_and_ends_with_the_page(served: Served) -> None:
    with operators_page("127.0.0.1:0", served.folder):
        link = served.folder / "server.page"
        assert link.stat().st_mode & 0o777 == 0o600
        url, _, token = link.read_text().strip().partition("?token=")
        assert asked(f"{url}status.json", token)["address"] == "fl.example.org:8443"
    assert not link.exists()
