"""The commands for a data owner's files: a schema to fill in, and what would be read."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from coinflower.accounting.errors import UserError
from coinflower.cli.output import JsonFlag, print_json, print_table
from coinflower.deploy.terminal import say, warn

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.command()
def schema(
    file: Annotated[Path, typer.Argument(help="A .csv, .tsv or .parquet file.")],
    target: Annotated[str | None, typer.Option(help="The column to be predicted.")] = None,
    person: Annotated[
        str | None, typer.Option(help="The column that says whose row it is.")
    ] = None,
    statistics: Annotated[
        Path | None,
        typer.Option(help="Published statistics (statistics.json) to take figures from."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New file for the schema (default: print it).")
    ] = None,
) -> None:
    """Draft a schema: the columns of a table, with ranges and categories to fill in."""
    from coinflower.learning.data.tables.draft import draft_schema
    from coinflower.learning.data.tables.table import column_types

    published = None if statistics is None else _published(statistics)
    text = draft_schema(
        file, *column_types(file), target=target, person=person, published=published
    )
    if out is None:
        typer.echo(text, nl=False)
    elif out.exists():
        raise UserError(f"{out} exists; choose another file, since it may hold somebody's work.")
    else:
        out.write_text(text, encoding="utf-8")
    warn("ranges and categories should come from public knowledge, never from the data itself.")


def _published(path: Path) -> dict[str, dict[str, Any]]:
    from coinflower.learning.queries.published import read_published

    found = read_published(path)
    if found.insecure:
        warn(f"the noise of {path} was predictable (a seeded run): these figures protect nobody.")
    return found.columns


@app.command("hash")
def hash_(
    file: Annotated[Path, typer.Argument(help="The schema, a TOML file.")],
    as_json: JsonFlag = False,
) -> None:
    """Print the hash of a schema, for the terms, and the inputs that a model gets."""
    from coinflower.learning.data.tables.schema import load_schema

    found = load_schema(file)
    if as_json:
        print_json({"hash": found.hash, "inputs": found.features, "target": list(found.target)})
        return
    typer.echo(found.hash)
    say(f"A record has {len(found.features)} inputs: {', '.join(found.features)}.")


@app.command()
def check(
    policy: Annotated[Path, typer.Argument(help="The policy, a TOML file.")],
    as_json: JsonFlag = False,
) -> None:
    """Tell the owner what a client would read: rows, persons, clamped, unknown, missing, refused.

    Nothing is sent, and nothing is charged.
    """
    from coinflower.client.data import load_local_dataset
    from coinflower.learning.data.persons import units_of
    from coinflower.learning.data.reading import Reading
    from coinflower.learning.data.records import describe
    from coinflower.protocol.policy import load_policy
    from coinflower.protocol.unit import Unit

    allowed = load_policy(policy)
    with _unlogged():
        data = load_local_dataset(allowed)
    records, reading = data.train, data.reading or Reading(rows=len(data.train))
    persons = None if records.persons is None else units_of(records, Unit.PERSON, data.name)
    figures: dict[str, Any] = {
        "data": allowed.data,
        "rows": reading.rows,
        "refused": reading.refused,
        "records": len(records),
        "declared_size": allowed.declared_size,
        "unit": str(allowed.unit),
        "persons": None if persons is None else len(persons),
        "most_rows_of_a_person": None if persons is None else int(persons.sizes.max(initial=0)),
        "weights": None if records.weights is None else _range(records.weights),
        "inputs": records.described,
        "targets": _targets(data.class_count, describe(records.targets)),
        "schema": records.schema,
        "clamped": dict(reading.clamped),
        "unknown": dict(reading.unknown),
        "missing": dict(reading.missing),
        "named": list(reading.named),
    }
    if as_json:
        print_json(figures)
        return
    say(
        f"{allowed.data}: {reading.rows} rows, of which {reading.refused} cannot be used. This "
        f"client has {len(records)} records and declares at most {allowed.declared_size} "
        f"{allowed.unit}s."
    )
    if persons is not None:
        most = figures["most_rows_of_a_person"]
        say(f"They are of {len(persons)} persons. Nobody has more than {most} of them.")
    if figures["weights"] is not None:
        least, largest = figures["weights"]
        say(f"They weigh {least:g} to {largest:g} in the loss.")
    say(f"ε protects {allowed.unit.facts.protected}.")
    say(f"Inputs of a record: {figures['inputs']}. Targets: {figures['targets']}.")
    columns = list(dict.fromkeys([*reading.clamped, *reading.unknown, *reading.missing]))
    if records.schema is not None:
        say(f"Read by the schema with hash {records.schema}.")
    if columns:
        print_table(
            "How many values",
            ["column", "clamped", "unknown", "missing"],
            [[name, *(part.get(name) for part in _by_column(reading))] for name in columns],
        )
    for why in reading.named:
        say(f"Refused: {why}.")
    if reading.refused > len(reading.named):
        say(f"{reading.refused - len(reading.named)} more are refused.")
    say("Only you see this: none of it is sent.")


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep the log quiet about what this command prints anyway."""
    log = logging.getLogger("coinflower.data")
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = False


def _range(values: Any) -> list[float]:
    return [float(values.min()), float(values.max())]


def _by_column(reading: Any) -> tuple[Any, Any, Any]:
    return reading.clamped, reading.unknown, reading.missing


def _targets(classes: int | None, numbers: str) -> str:
    return numbers if classes is None else f"one of {classes} classes"
