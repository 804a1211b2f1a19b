"""Redraw a study's page from its CSV files, without training.

``python -m tools.study_redraw docs/results/mnist-few-large …``
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from pathlib import Path

from coinflower.experiments.studies.page import draw_page
from coinflower.experiments.studies.studies import Question, Study, parse_question
from coinflower.experiments.studies.trainings import Outcome
from tools.study_outcomes import read_outcomes


def redraw(folder: Path, out: Path) -> None:
    """Redraw the pictures and the page of a study in a folder, into that folder or another.

    Raises:
        ValueError: The page there is not one of a study.
    """
    page = (folder / "README.md").read_text()
    command = re.search(r"^coinflower paper experiments .*$", page, re.MULTILINE)
    data = re.search(r"^(.*), partition `", page, re.MULTILINE)
    if command is None or data is None:
        raise ValueError(f"{folder / 'README.md'} is not the page of a study.")
    words = [word for word in shlex.split(command[0]) if word not in ("--download", "--extend")]
    question = parse_question(words[3])
    outcomes = read_outcomes(folder)
    study = dataclasses.replace(
        _study(question, dict(zip(words[4::2], words[5::2], strict=True)), outcomes),
        extend="--extend" in command[0],
    )
    draw_page(study, outcomes, out, data=data[1], command=command[0])


def _study(question: Question, options: dict[str, str], outcomes: list[Outcome]) -> Study:
    """Return the study; what its figures tell is taken from them, the rest from its options."""
    budgets = [each.case.epsilon for each in outcomes if each.case.epsilon is not None]
    return Study(
        question=question,
        scenario=options.get("--scenario", "many-small"),
        data=options["--data"],
        partition=options.get("--partition", Study.partition),
        iterations=max(outcomes[0].curve),
        epsilons=tuple(dict.fromkeys(budgets)),
        delta=float(options.get("--delta", Study.delta)),
        caps=tuple(dict.fromkeys(each.case.cap for each in outcomes)),
        rates=_rates(options, outcomes),
        seeds=len(outcomes[0].accuracy),
        test_images=int(options.get("--test-images", Study.test_images)),
        model=options.get("--model", Study.model),
    )


def _rates(options: dict[str, str], outcomes: list[Outcome]) -> tuple[float, ...]:
    stated = options.get("--rates")
    if stated is None:
        return tuple(outcomes[0].tuning)
    return tuple(float(rate) for rate in stated.split(","))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        redraw(Path(name), Path(name))
