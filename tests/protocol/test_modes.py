"""Every mode is known everywhere: its words have one home, and a new one is left out nowhere."""

from dataclasses import fields

import pytest

from coinflower.accounting.mechanism import Round
from coinflower.experiments.audit.audit import standard_plan
from coinflower.experiments.simulator.request import Request
from coinflower.experiments.simulator.scenarios import analysis_of
from coinflower.experiments.simulator.simulator import parse_noise
from coinflower.protocol.modes import PRIVATE_MODES, Mode, ModeFacts
from coinflower.protocol.unit import Unit
from coinflower.report.guarantee import statements
from coinflower.report.run import caveats
from tools.mode_tables import ROOT, TABLES, table, with_table

EVERYWHERE = ("README.md", "SECURITY.md", "docs/wire.md", "docs/data-owners.md", "deploy/README.md")


@pytest.mark.parametrize("document", TABLES)
def test_documents_say_of_modes_what_the_program_says(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    assert with_table(text, table(TABLES[document])) == text, "run python -m tools.mode_tables"


def test_every_document_that_speaks_of_modes_has_a_row_for_each():
    assert set(EVERYWHERE) < set(TABLES)
    for columns in TABLES.values():
        assert [line.split("`")[1] for line in table(columns)[2:]] == list(Mode)


def test_an_edited_row_is_noticed_and_a_missing_table_too():
    lines = table(TABLES["README.md"])
    edited = "\n".join(["before", *lines, "", "after", ""]).replace("no: it sees sums", "yes")
    assert with_table(edited, lines) == "\n".join(["before", *lines, "", "after", ""])
    with pytest.raises(ValueError, match="0 lines are"):
        with_table("nothing here\n", lines)


def test_documents_name_the_modes_that_trust_the_server():
    *first, last = (f"`{mode}`" for mode in Mode if mode.server_adds_noise)
    for document, link in {
        "SECURITY.md": "and",
        "docs/data-owners.md": "and",
        "docs/sharp-edges.md": "or",
        "docs/wire.md": "and",
    }.items():
        text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
        assert f"{', '.join(first)} {link} {last}" in text, document


@pytest.mark.parametrize("mode", Mode)
def test_every_question_about_a_mode_has_an_answer(mode):
    words = [getattr(mode.facts, each.name) for each in fields(ModeFacts) if each.type == "str"]
    assert len(words) == 12
    assert all(words[:-1])  # only the caveat may be empty
    assert not any("|" in word or word.endswith(".") for word in words[:-1])


@pytest.mark.parametrize("mode", Mode)
def test_what_is_said_of_a_mode_is_what_it_does(mode):
    facts = mode.facts
    assert mode.is_private is (mode.client_adds_noise or mode.server_adds_noise)
    assert facts.against_server.startswith("yes") is mode.client_adds_noise
    assert ("not the server" in facts.against) is mode.server_adds_noise
    assert facts.noise.startswith(
        "the server" if mode.server_adds_noise else "every client" if mode.is_private else "nobody"
    )
    visible = mode.is_private and mode.flips_coins and not mode.answers_always
    assert ("who takes part" in facts.network_sees) is (visible or mode is Mode.NONE)
    # A coin that shows must be charged as shown, or be warned of.
    assert bool(facts.caveat) is (visible and mode.hides_coins)


@pytest.mark.parametrize("mode", PRIVATE_MODES)
def test_every_private_mode_can_be_simulated_audited_and_reported(mode):
    request = Request(scenario="many-small", data="synthetic", iterations=1, noise=str(mode))
    assert request.chosen_scheme == mode.charged_as
    assert analysis_of(parse_noise(request.noise)) is mode.scheme
    plan = standard_plan(full=False)
    assert mode in {setting.mode for setting in plan.settings}
    assert mode in {training.mode for training in plan.trainings}
    cost = mode.scheme(Round(p=mode.usual_p, q=0.1, d=10, noise_multiplier=2.0))
    for unit in Unit:
        stated = statements(mode, unit, cost, 1, 0.1, 1e-5)
        answers = {each.question: each.answer for each in stated}
        assert answers["Against whom"] == mode.facts.against
        assert answers["For what unit"].startswith(unit.facts.protected)
        assert (mode.facts.caveat in caveats(mode, unit)) is bool(mode.facts.caveat)
        assert unit.facts.caveat in caveats(mode, unit)


@pytest.mark.parametrize(
    ("mode", "noises"),
    [
        (Mode.TRUSTED, 1),
        (Mode.COVERED, 1),
        (Mode.UNTRUSTED, 10),
        (Mode.MASKED, 10),
        (Mode.QUIET, 4),
        (Mode.LOCAL_ONLY, 1),
        (Mode.NONE, 0),
    ],
)
def test_a_sum_carries_the_noise_of_those_who_add_it(mode, noises):
    assert mode.noises_in_sum(asked=10, took_part=4) == noises


def test_shares_of_the_noise_add_up_to_as_many_noises_as_honest_clients_go_into_all():
    assert Mode.MASKED.noises_in_sum(asked=10, took_part=4, honest=7) == 10 / 7
