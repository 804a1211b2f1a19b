"""The documents keep their word: commands are run or at least understood, what is cited exists.

In a page, blocks of ``console`` are run and their output is compared (``…`` stands for anything),
blocks of ``sh`` and ``python`` are run, in order and in one folder. A mark behind ``sh`` says why a
block is not run: ``long`` (time or data), ``machines`` (other machines or programs), ``stays`` (it
runs until it is stopped). Those are parsed by the program itself.
"""

import ast
import contextlib
import importlib.util
import io
import re
import runpy
import shlex
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coinflower.accounting.ledger.ledger import Ledger
from coinflower.cli.main import app
from coinflower.learning.data.tables.schema import load_schema
from coinflower.protocol.policy import load_policy
from coinflower.server.settings import load_settings
from tests.support.documents import all_commands, command_of, commands_in, parsed
from tests.support.documents import blocks as guide_blocks

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "deploy" / "README.md"
PAGES = sorted(
    [
        *(ROOT / "deploy").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)
PACKAGES = (
    "accounting",
    "protocol",
    "learning",
    "masking",
    "flower_internals",
    "client",
    "server",
    "notary",
    "experiments",
    "deploy",
    "report",
    "cli",
    "tools",
    "tests",
)
FILES = {
    "policy.toml": load_policy,
    "schema.toml": load_schema,
    "settings.toml": load_settings,
}
NOT_RUN = {"long", "machines", "stays"}
# What documents may tell people to type besides our own program.
OTHERS = {
    "apt",
    "curl",
    "docker",
    "ip6tables",
    "iptables",
    "kubectl",
    "make",
    "pip",
    "python",
    "systemctl",
}
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e-?\d+)?")
FENCE = re.compile(r"^ *```(\w*) *([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    mark: str
    text: str

    @property
    def commands(self):
        """The command lines of a block of sh or console."""
        if self.language == "console":
            return [line for line in self.text.splitlines() if line.startswith("$ ")]
        text = self.text.replace("\\\n", " ")
        return text.splitlines() if self.language == "sh" else []


def blocks_of(page):
    return [Block(*match) for match in FENCE.findall(page.read_text())]


def is_run(block):
    return block.language in ("console", "sh", "python") and block.mark not in NOT_RUN


def has_commands_to_run(page):
    # The guide is run by `make test-hosts`, make runs this test, and studies take hours.
    elsewhere = page in (GUIDE, ROOT / "CONTRIBUTING.md")
    elsewhere = elsewhere or page.is_relative_to(ROOT / "docs" / "results")
    return not elsewhere and any(is_run(block) for block in blocks_of(page))


def pages(wanted):
    found = [page for page in PAGES if wanted(page)]
    return pytest.mark.parametrize(
        "page", found, ids=lambda page: page.relative_to(ROOT).as_posix()
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data owner's folder in mid-experiment: the guide's, 200 of its 400 rounds charged."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("settings.toml", "policy.toml"):
        Path(name).write_text(guide_blocks()[name])
    terms, policy = load_settings(Path("settings.toml")).terms, load_policy(Path("policy.toml"))
    with Ledger.create(policy.ledger, policy.data_set) as ledger:
        cost = terms.round_cost(policy.declared_size)
        ledger.reserve(terms.ledger_key, cost, terms.rounds, policy.budget)
        ledger.flip_all(terms.ledger_key, range(1, 201))
    return tmp_path


@pages(has_commands_to_run)
def test_commands_print_what_the_page_shows(page, folder):
    for block in blocks_of(page):
        if block.language == "toml":
            Path(block.mark).write_text(block.text)
            FILES[block.mark](Path(block.mark))
        elif block.language == "python":
            if block.mark:
                Path(block.mark).write_text(block.text)
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, f"{page.name}, python", "exec"), {"__name__": "page"})
        elif block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, shown = part.partition("\n")
                assert_shown(output_of(command), shown)
        elif is_run(block):
            for line in block.commands:
                output_of(line)


def output_of(line):
    program, *arguments = shlex.split(line, comments=True)
    if program == "python" and arguments[0].endswith(".py"):
        runpy.run_path(arguments[0], run_name="__main__")
        return ""
    assert program == "coinflower", f"{line!r} needs a mark, since it cannot be run here"
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, line
    return done.stdout


def assert_shown(printed, shown):
    """Compare word by word, figures to 2e-5, with … for anything."""
    printed, shown = " ".join(printed.split()), " ".join(shown.split())
    words = [re.escape(NUMBER.sub("#", part)) for part in shown.split("…")]
    pattern = r"(?:.*)".join(words).replace(r"\#", rf"({NUMBER.pattern})")
    found = re.fullmatch(pattern, printed)
    assert found, f"\n{printed}\nis not what is shown:\n{shown}"
    for now, then in zip(found.groups(), NUMBER.findall(shown), strict=True):
        assert figure(now) == pytest.approx(figure(then), rel=2e-5)


def figure(text):
    return float(text.replace(",", ""))


@pages(lambda page: any(block.commands for block in blocks_of(page)))
def test_every_command_of_the_page_is_understood(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in (line for block in blocks_of(page) for line in block.commands):
        for words in commands_in(line.removeprefix("$ ")):
            if "coinflower" in words:
                parsed(shlex.join(words[words.index("coinflower") + 1 :]))
            elif words[0] == "make":
                assert set(words[1:]) <= targets, line
            elif words[:2] == ["python", "-m"]:
                assert importlib.util.find_spec(words[2]), line
            else:
                assert words[0] in OTHERS, line


@pages(lambda page: "`coinflower " in page.read_text())
def test_commands_in_running_text_exist(page):
    for text in re.findall(r"`coinflower ([^`]+)`", FENCE.sub("", page.read_text())):
        command, name, words = command_of([word for word in text.split() if word != "…"])
        known = {
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        asked = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert asked <= known | {"--help"}, f"coinflower {name}: {asked - known}"


def test_every_command_is_mentioned_somewhere():
    told = " ".join(" ".join(page.read_text() for page in PAGES).split())
    names = set(all_commands())
    assert "coinflower ledger verify" in names
    assert {name for name in names if f"{name} " not in told and f"{name}`" not in told} == set()


def citations():
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            text = " ".join(file.read_text().replace("#", " ").split())
            for section in re.findall(r'docs/mathematics\.md, "([^"]+)"', text):
                yield file.relative_to(ROOT).as_posix(), section


def test_every_section_that_the_code_cites_exists():
    page = (ROOT / "docs" / "mathematics.md").read_text()
    sections = set(re.findall(r"^## (.+)$", page, re.MULTILINE))
    cited = set(citations())
    assert len(cited) >= 5
    assert {(file, section) for file, section in cited if section not in sections} == set()


@pages(lambda _: True)
def test_links_between_documents_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pages(lambda page: "tests/" in page.read_text())
def test_a_test_that_is_linked_by_its_name_exists(page):
    cited = re.findall(r"\[([^]]+)\]\(([./]*tests/[^)]+\.py)\)", page.read_text())
    for sentence, target in cited:
        name = f"test_{sentence.replace(' ', '_')}"
        assert f"\ndef {name}(" in (page.parent / target).read_text(), (name, target)


def anchors(page):
    """The anchors of a page: its own, and those that the site makes of headings."""
    text = FENCE.sub("", page.read_text())
    yield from re.findall(r'<a id="([^"]+)">', text)
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode().lower()
        yield re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip())


@pages(lambda page: ".md#" in page.read_text() or "](#" in page.read_text())
def test_links_to_sections_lead_to_sections(page):
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", page.read_text()):
        aim = page.parent / target if target else page
        assert anchor in set(anchors(aim)), f"{target}#{anchor}"


def defined_names():
    """Every function as ``name`` and ``module.path.name``, every method as ``Class.name``."""
    for file in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                yield from (node.name, f"{module}.{node.name}")
            elif isinstance(node, ast.ClassDef):
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                yield from (f"{node.name}.{method.name}" for method in methods)


def test_every_function_in_the_drawing_of_a_round_exists():
    drawing = (ROOT / "docs" / "img" / "round.svg").read_text()
    named = set(re.findall(r'class="code"[^>]*>([^<]+)<', drawing))
    assert {"Ledger.flip_all", "clipped_gradient_sum"} <= named
    assert named - set(defined_names()) == set()


def test_the_map_has_every_room_and_no_other():
    page = (ROOT / "docs" / "architecture.md").read_text()
    mapped = set(re.findall(r"`([a-z_/]+)/` \|$|^\| `(tests/[a-z]+)/`", page, re.MULTILINE))
    mapped = {first or second for first, second in mapped}
    rooms = {
        file.parent.relative_to(ROOT).as_posix()
        for package in (*PACKAGES, "docs")
        for file in (ROOT / package).rglob("*.py")
        if file.name != "__init__.py"
    }
    mirrors = {room for room in rooms if (ROOT / room.removeprefix("tests/")).is_dir()}
    assert mapped == {room for room in rooms if not (room.startswith("tests") and room in mirrors)}
