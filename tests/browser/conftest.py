"""A real Chromium for tests: Debian's, without a window, driven through Selenium.

With ``SCREENSHOTS=docs/img`` in the environment tests save the pictures of the documents there.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.tools import require_programs

_PATIENCE_SECONDS = 120.0


class Browser:
    """A browser, and how tests look at pages with it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._complaints: list[str] = []

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        self.driver.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        """Return what a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        """Return the one element of a CSS selector."""
        (element,) = self.driver.find_elements("css selector", selector)
        return element

    def text(self, selector: str) -> str:
        """Return what an element says; read in one step, as it may be replaced any moment."""
        return str(self.run("return document.querySelector(arguments[0])?.innerText", selector))

    def value(self, selector: str) -> float:
        """Return the exact figure that an element carries."""
        script = "return document.querySelector(arguments[0] + ' data').value"
        return float(self.run(script, selector))

    def wait(self, condition: Callable[[], Any]) -> None:
        """Wait until something holds."""
        from selenium.webdriver.support.wait import WebDriverWait

        WebDriverWait(self.driver, _PATIENCE_SECONDS, poll_frequency=0.1).until(
            lambda _: condition()
        )

    def await_loaded(self, selector: str) -> None:
        """Wait until there is such an element on a page that has all its parts."""
        script = "return document.readyState === 'complete' && !window.old && !!document"
        self.wait(lambda: self.run(f"{script}.querySelector(arguments[0])", selector))

    def press(self, selector: str) -> None:
        """Press a button of a form and wait until the page has come back."""
        self.run("window.old = true; document.querySelector(arguments[0]).click()", selector)
        self.await_loaded("body")

    def type(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def resize(self, width: int, height: int = 900) -> None:
        """Give the page exactly that size: a window is never as narrow as a phone."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def prefer(self, scheme: str) -> None:
        """Let the reader prefer ``light`` or ``dark``."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def leave(self) -> None:
        """Leave the page, before its server ends and is missed."""
        self._complaints += self._look_at_console()
        self.open("about:blank")

    def complaints(self) -> list[str]:
        """Return what the console has complained of since it was last asked."""
        found, self._complaints = self._complaints + self._look_at_console(), []
        return found

    def _look_at_console(self) -> list[str]:
        # On a refusal, which has no icon, the browser asks for favicon.ico at a time of its own.
        return [
            f"{line['level']}: {line['message']}"
            for line in self.driver.get_log("browser")
            if line["level"] in ("SEVERE", "WARNING") and "/favicon.ico" not in line["message"]
        ]

    def save_picture(self, name: str, *, width: int) -> None:
        """Save a picture of the whole page, if pictures are wanted."""
        folder = os.environ.get("SCREENSHOTS")
        if folder is None:
            return
        self.resize(width)
        self.resize(width, self.run("return document.documentElement.scrollHeight"))
        picture = Image.open(io.BytesIO(self.driver.get_screenshot_as_png()))
        picture.convert("RGB").quantize(128).save(Path(folder) / name, optimize=True)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests; it takes a second or two to start."""
    require_programs("browser")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in (
        "--headless=new",
        "--no-sandbox",  # root has none
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
        "--host-resolver-rules=MAP other.example 127.0.0.1",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser on an empty page; whatever the console complains of fails the test."""
    chromium.resize(1000)
    chromium.prefer("light")
    yield chromium
    chromium.leave()
    assert chromium.complaints() == []
