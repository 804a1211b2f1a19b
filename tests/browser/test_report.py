"""The report of a run in a real browser: on a phone, on a desk, in the dark and on paper."""

import pytest

GROUND = "return getComputedStyle(document.body).backgroundColor"
CHARTS = "return [...document.querySelectorAll('svg.chart')].map(one => one.clientWidth)"


@pytest.fixture(scope="module")
def page(chromium, tmp_path_factory):
    """The address of the report of a run of 45 clients."""
    # Here, because this file is also imported only to be skipped (tests/tools/test_required.py).
    from coinflower.deploy.local.cluster import prepare
    from coinflower.protocol.modes import Mode
    from coinflower.report.run import report_local_run
    from tests.support.federations import plan, play

    folder = tmp_path_factory.mktemp("report") / "run"
    cluster = prepare(plan(rounds=1, clients=45, mode=Mode.QUIET), folder)
    play(cluster)
    return report_local_run(cluster).as_uri()


@pytest.fixture
def report(browser, page):
    """Open the report."""
    browser.open(page)
    return browser


@pytest.mark.parametrize("width", [360, 1400])
def test_the_report_fits_its_window(report, width):
    report.resize(width)
    assert report.run("return document.documentElement.scrollWidth") <= width
    charts = report.run(CHARTS)
    assert len(charts) == 4
    assert all(300 <= chart <= width for chart in charts)


def test_the_report_is_dark_for_who_prefers_it_and_white_on_paper(report):
    light = report.run(GROUND)
    report.prefer("dark")
    assert report.run(GROUND) != light
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    report.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"media": "print", "features": dark}
    )
    assert report.run(GROUND) == "rgb(255, 255, 255)"
    report.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
