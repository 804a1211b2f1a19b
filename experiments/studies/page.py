"""A study as a page: figures, tables, the command that redoes it, and what it shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from coinflower.accounting.rounding import rounded_up
from coinflower.experiments.simulator.request import NO_SCHEME
from coinflower.experiments.simulator.scenarios import PER_ITERATION, SETTINGS
from coinflower.experiments.studies.drawing import draw
from coinflower.experiments.studies.studies import Question, Study
from coinflower.experiments.studies.tables import write_tables
from coinflower.experiments.studies.trainings import Outcome
from coinflower.learning import Dataset

EMNIST_BYCLASS = 697_932
"""Training images of the split that the paper uses."""
_QUESTIONS = {
    Question.PER_ITERATION: "every analysis at the paper's budget for each iteration",
    Question.CAP: "what the cap buys",
}


def write_page(
    study: Study, outcomes: list[Outcome], out: Path, *, data: str, command: str
) -> None:
    """Write pictures, CSV files and README.md of a study.

    Args:
        study: The study.
        outcomes: What its cases came to.
        out: Folder.
        data: What the data is called.
        command: The command line that redoes it.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_tables(study, outcomes, out)
    draw_page(study, outcomes, out, data=data, command=command)


def draw_page(study: Study, outcomes: list[Outcome], out: Path, *, data: str, command: str) -> None:
    """Write pictures and README.md of a study, as ``write_page``, whose CSV files are there."""
    captions = draw(study, outcomes, out)
    pictures = "\n".join(
        f"![{name}]({name}.png)\n\n{caption}\n" for name, caption in captions.items()
    )
    setting = SETTINGS[study.scenario]
    rates = ", ".join(f"{rate:g}" for rate in study.rates)
    text = f"""# {study.scenario}: {_QUESTIONS[study.question]}

{_setting_line(study, outcomes, data)}
The paper has {setting.clients:,} clients of {setting.d} records at p = {setting.p:g},
q = {setting.q:g}. Here: model {study.model}, clip norm 1, momentum 0.9. The learning rate is the
best of {rates}{_beyond(study)} for each line of the table, chosen with one seed
on {study.test_images:,} test images that the figures do not use; accuracy is measured on as many
others.

Redo it (finished trainings are not repeated):

```sh
{command}
```

**INSECURE:** coins, samples and noise are seeded so that the figures can be reproduced; models
trained this way are not private.

{_table(outcomes)}

{_edges(outcomes)}
{_findings(study, outcomes)}

{pictures}
Figures behind the pictures: [results.csv](results.csv), [curves.csv](curves.csv),
[learning-rates.csv](learning-rates.csv); every picture is there as SVG, too.
"""
    (out / "README.md").write_text(text)


def _beyond(study: Study) -> str:
    if not study.extend:
        return ""
    return ", and of others beyond, in steps of the same width, until the best lay inside,"


def describe(data: Dataset) -> str:
    """Return what a reader must know of the data; where it lies is nobody's concern."""
    name = Path(data.name).name
    count = len(data.train)
    if name == "emnist byclass" and count < EMNIST_BYCLASS:
        name, size = "A subset of EMNIST ByClass", f"{count:,} of {EMNIST_BYCLASS:,}"
    else:
        size = f"{count:,}"
    return f"{name} ({size} training images, {data.classes} classes)"


def _setting_line(study: Study, outcomes: list[Outcome], data: str) -> str:
    first = outcomes[0]
    clients = f"{first.clients:,} clients"
    fitted = f"p = {first.p:.4g}, q = {first.q:.4g}"
    sizes = f"{first.d} records each" if study.partition == "equal" else f"up to {first.d} records"
    return (
        f"{data}, partition `{study.partition}`: {clients}, {sizes}, {fitted}; "
        f"{study.iterations} iterations."
    )


def _edges(outcomes: list[Outcome]) -> str:
    """Say which learning rates lie at the edge of those tried; empty if none does."""
    count = sum(each.edge != "" for each in outcomes)
    if not count:
        return ""
    return (
        f"**{count} of {len(outcomes)} learning rates lie at the edge of those tried**, marked ≤ "
        "(the smallest) or ≥ (the largest): a rate beyond it might serve better, so these lines "
        "show what was reached, not the most that can be.\n"
    )


def _table(outcomes: list[Outcome]) -> str:
    lines = [
        "| noise by | budget ε | clients | σ | ε that holds | learning rate | accuracy |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        budget = _budget(each)
        rate = f"{each.edge}{each.learning_rate:g}"
        true = "none" if each.epsilon is None else rounded_up(each.epsilon, 3)
        lines.append(
            f"| {each.case.title} | {budget} | {each.clients:,} | {rounded_up(each.sigma)} | "
            f"{true} | {rate} | {each.mean:.1%} ± {each.spread:.1%} |"
        )
    return "\n".join(lines)


def _budget(outcome: Outcome) -> str:
    if outcome.case.scheme == NO_SCHEME:
        return ""
    if outcome.case.epsilon is None:
        return f"{PER_ITERATION[0]:g} each iteration"
    return f"{outcome.case.epsilon:g}"


def _findings(study: Study, outcomes: list[Outcome]) -> str:
    """Say in sentences what the table shows."""
    return "\n".join(f"- {sentence}" for sentence in _sentences(study, outcomes))


def _sentences(study: Study, outcomes: list[Outcome]) -> Iterator[str]:
    by_scheme = {each.case.scheme: each for each in outcomes}
    if study.question is Question.CAP:
        yield from _cap_sentences(outcomes)
        return
    ours, wcs, ols, theirs = (by_scheme[name] for name in ("certified", "wcs", "ols", "paper"))
    yield (
        f"At each iteration's budget the certified bound reaches {ours.mean:.1%} with σ = "
        f"{rounded_up(ours.sigma, 3)}; wcs {wcs.mean:.1%} with {rounded_up(wcs.sigma, 3)}, "
        f"ols {ols.mean:.1%} with {rounded_up(ols.sigma, 3)}. {_their_claim(theirs, ours)}"
    )


def _their_claim(theirs: Outcome, ours: Outcome) -> str:
    assert theirs.epsilon is not None
    assert ours.epsilon is not None
    if theirs.epsilon < 1.01 * ours.epsilon:
        return "The paper's σ is almost the same here."
    return (
        f"The paper's σ = {rounded_up(theirs.sigma, 3)} reaches {theirs.mean:.1%}, but costs "
        f"ε = {rounded_up(theirs.epsilon, 3)} where the certified noise costs "
        f"{rounded_up(ours.epsilon, 3)}."
    )


def _cap_sentences(outcomes: list[Outcome]) -> Iterator[str]:
    (theirs,) = (each for each in outcomes if each.case.scheme == "paper")
    for epsilon in dict.fromkeys(each.case.epsilon for each in outcomes):
        group = [
            each
            for each in outcomes
            if (each.case.scheme, each.case.epsilon) == ("certified", epsilon)
        ]
        best, plain = max(group, key=lambda each: each.mean), group[-1]
        where = "each iteration's budget" if epsilon is None else f"ε = {epsilon:g}"
        sentence = f"At {where}: {plain.mean:.1%} without a cap (σ = {rounded_up(plain.sigma, 3)})"
        if best is plain:
            sentence += ", more than with any cap."
        else:
            sentence += (
                f", at most {best.mean:.1%}, with {_cap_name(best)} (σ = "
                f"{rounded_up(best.sigma, 3)})."
            )
        if epsilon is None:
            sentence += f" {_their_noise(theirs, group)}"
        yield sentence


def _their_noise(theirs: Outcome, group: list[Outcome]) -> str:
    """Say which cap needs about the paper's noise, and what it costs and reaches."""
    near = min(group, key=lambda each: abs(each.sigma - theirs.sigma))
    assert theirs.epsilon is not None
    assert near.epsilon is not None
    if theirs.epsilon < 1.01 * near.epsilon:
        return "The paper's σ is almost the same here."
    return (
        f"The paper's σ = {rounded_up(theirs.sigma, 3)} without a cap reaches {theirs.mean:.1%}, "
        f"but costs ε = {rounded_up(theirs.epsilon, 3)} in all; {_cap_name(near)} needs σ = "
        f"{rounded_up(near.sigma, 3)}, provably costs ε = {rounded_up(near.epsilon, 3)}, and "
        f"reaches {near.mean:.1%}."
    )


def _cap_name(outcome: Outcome) -> str:
    return "no cap" if math.isinf(outcome.case.cap) else f"cap {outcome.case.cap:g}"
