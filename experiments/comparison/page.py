"""A comparison as a page, and all of them as one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from coinflower.accounting.errors import UserError
from coinflower.experiments.comparison.comparisons import (
    DELTA,
    UPDATE,
    Comparison,
)
from coinflower.experiments.comparison.drawing import OVER_CLIENTS, draw
from coinflower.experiments.comparison.lines import cell_of, lines_of
from coinflower.experiments.comparison.playing import OVER_CLIENTS_EPSILON
from coinflower.experiments.comparison.record import TRAININGS, TrainingRecord
from coinflower.experiments.comparison.tables import (
    OVER_CLIENTS_RESULTS,
    RESULTS,
    UNTRAINED,
    heading,
    progress_of,
    rows_of,
    write_results,
)
from coinflower.protocol.planning.choices import CLIP_NORM

OVERVIEW = "README.md"
_BEGIN, _END = "<!-- the table begins -->", "<!-- the table ends -->"
_SAID_AT = 2.0
_SAID = {
    "centralised DP-SGD": "with all data in one place",
    "trusted, capped": "with a trusted server and secret coins",
    "masked, capped": "with masked sums and nobody to trust",
    "untrusted": "if every client adds the whole noise",
}


def write_page(comparison: Comparison, record: TrainingRecord, out: Path, *, command: str) -> None:
    """Write pictures, CSV files and README.md of a comparison, as far as it is trained."""
    out.mkdir(parents=True, exist_ok=True)
    write_results(comparison, record, out)
    pictures = draw(comparison, record, out)
    text = f"""# {comparison.title[0].upper()}{comparison.title[1:]}

![Test error over ε]({pictures[0]}.png)

{_finding(comparison, record)}

```sh
{command}
```

{progress_of(comparison, record)}

{chr(10).join([*heading(), *rows_of(comparison, record)])}

{_plan(comparison)}

{_over_clients(comparison)}Figures: [{RESULTS}]({RESULTS}), and every training: [{TRAININGS}](\
{TRAININGS}).
"""
    (out / "README.md").write_text(text)


def _finding(comparison: Comparison, record: TrainingRecord) -> str:
    """Say in a sentence what is trained at the middle budget."""
    told = []
    for line in lines_of(comparison):
        if line.name in _SAID:
            outcome = record.outcome(cell_of(comparison, line, _SAID_AT).level)
            if outcome is not None:
                told.append(f"{outcome.mean:.1%} {_SAID[line.name]}")
    if not told:
        return f"Nothing is trained at ε = {_SAID_AT:g} yet."
    return f"At ε = {_SAID_AT:g}, δ = {DELTA:g}: {', '.join(told)}."


def _plan(comparison: Comparison) -> str:
    """Say how everything was trained."""
    model = comparison.model
    if comparison.features is not None:
        model += f" on {comparison.features} features"
    options = ", ".join(f"{name} {value}" for name, value in comparison.model_options.items())
    what = f"{comparison.unit}s"
    who = "; everybody takes part"
    if not comparison.everybody_only:
        who = (
            f": p = {comparison.p:g} and q = {comparison.q:.4g}, or p = 1 in the lines of "
            "everybody and of all data in one place"
        )
    return (
        f"Accuracy in per cent, mean and standard deviation of three seeds. Every line trains "
        f"{comparison.rounds} rounds with {comparison.batch:,g} {what} on average, of "
        f"{comparison.units:,} in all{who}. Model {model}"
        f"{f' ({options})' if options else ''}, clip norm {CLIP_NORM:g}, "
        f"{_update()}. Accuracy "
        "depends on the noise in a sum and not on who added it, so lines whose noise is the same "
        "to within 1 % share their trainings. Learning rates are doubled and halved until the best "
        "lies inside those tried, by one seed. Each half of the test part chooses the rate that "
        "the other half reports, and accuracy is the mean of both. **INSECURE:** everything is "
        "seeded, so these models are not private."
    )


def _update() -> str:
    words = UPDATE.describe().split(", ")
    return ", ".join(word for word in words if not word.startswith("learning rate"))


def _over_clients(comparison: Comparison) -> str:
    if not comparison.over_clients:
        return ""
    text = (
        f"The same records at the same ε = {OVER_CLIENTS_EPSILON:g}, shared out to more and more "
        "clients, everybody in every round: where every client adds the whole noise "
        "(`untrusted`), a sum carries as many noises as there are clients; masked, it carries "
        "little more than the one noise of a trusted server, though a fifth of the clients may be "
        f"missing and a tenth colluding. Figures: [{OVER_CLIENTS_RESULTS}]({OVER_CLIENTS_RESULTS})."
    )
    picture = f"![Test error over the number of clients]({OVER_CLIENTS}.png)"
    return f"## What it costs not to trust the server\n\n{picture}\n\n{text}\n\n"


def write_overview(
    comparisons: Iterable[Comparison], records: Mapping[str, TrainingRecord], page: Path
) -> None:
    """Replace the table of a page of results by one of all comparisons.

    Raises:
        UserError: The page says nowhere where its table begins and ends.
    """
    text = page.read_text()
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise UserError(f"{page} has no table between {_BEGIN} and {_END}; put both into it.")
    table = "\n".join(_overview(comparisons, records))
    page.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}")


def _overview(
    comparisons: Iterable[Comparison], records: Mapping[str, TrainingRecord]
) -> Iterator[str]:
    yield from heading()
    for comparison in comparisons:
        record = records[comparison.name]
        columns = heading()[0].count("|") - 2
        if not len(record):
            yield f"| **{comparison.title}**: not trained yet |" + f" {UNTRAINED} |" * columns
            continue
        title = f"[{comparison.title}]({comparison.name}/README.md)"
        yield f"| **{title}** |" + " |" * columns
        yield from rows_of(comparison, record)
