"""The documents keep their word: sections that code cites exist, commands print what is shown."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import app

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "accounting",
    "protocol",
    "learning",
    "client",
    "server",
    "experiments",
    "deploy",
    "tests",
)
ACCOUNTING = ("epsilon", "delta", "sigma", "rounds", "compare", "plan", "ledger")
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e-?\d+)?")


def citations():
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            text = " ".join(file.read_text().replace("#", " ").split())
            for section in re.findall(r'docs/mathematics\.md, "([^"]+)"', text):
                yield file.relative_to(ROOT).as_posix(), section


def shown_commands():
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for block in blocks:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            if command.split()[1] in ACCOUNTING:
                yield command, output


def test_every_section_that_the_code_cites_exists():
    page = (ROOT / "docs" / "mathematics.md").read_text()
    sections = set(re.findall(r"^## (.+)$", page, re.MULTILINE))
    cited = set(citations())
    assert len(cited) >= 5
    assert {(file, section) for file, section in cited if section not in sections} == set()


@pytest.mark.parametrize(("command", "shown"), shown_commands())
def test_the_readme_shows_what_commands_print(command, shown, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(app, command.split()[1:], catch_exceptions=False)
    assert done.exit_code == 0
    printed = " ".join(done.stdout.split())
    shown = " ".join(shown.split())
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown)
    for now, then in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        assert figure(now) == pytest.approx(figure(then), rel=2e-5)


def figure(text):
    return float(text.replace(",", ""))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_between_documents_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert [target for target in targets if not (ROOT / target).exists()] == []
