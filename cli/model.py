"""The commands for models: their fingerprints, by which a policy pins them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from coinflower.accounting.errors import UserError
from coinflower.cli.options.model import (
    LoraRank,
    ModelOptions,
    RowShape,
    TrainedParts,
    make_tuning,
    parse_options,
    parse_shape,
)
from coinflower.cli.output import JsonFlag, print_json
from coinflower.deploy.terminal import say
from coinflower.protocol.strict import read_toml
from coinflower.protocol.terms import Terms

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def _models() -> None:
    """Print what a model is, so that a policy can pin it."""


@app.command("fingerprint")
def fingerprint_(
    model: Annotated[
        str,
        typer.Argument(
            help="A model's name, or the file of terms that name one: terms.json, settings.toml."
        ),
    ],
    outputs: Annotated[int, typer.Option(help="How many numbers it answers with.")] = 10,
    row_shape: RowShape = None,
    model_option: ModelOptions = None,
    trained_part: TrainedParts = None,
    lora_rank: LoraRank = 0,
    as_json: JsonFlag = False,
) -> None:
    """Print a model's fingerprint, for `fingerprints` in a policy, and its number of parameters."""
    from coinflower.learning import build_model, count_parameters, fingerprint, model_of

    path = Path(model)
    if path.suffix in (".json", ".toml"):
        terms = _terms_in(path)
        name, built = terms.model, model_of(terms)
    else:
        name = model
        built = build_model(
            name,
            classes=outputs,
            row_shape=parse_shape(row_shape),
            options=parse_options(model_option),
            tuning=make_tuning(None, trained_part, lora_rank),
        )
    found = {
        "model": name,
        "fingerprint": fingerprint(built),
        "parameters": sum(each.numel() for each in built.parameters()),
        "trained": count_parameters(built),
    }
    if as_json:
        print_json(found)
        return
    typer.echo(found["fingerprint"])
    say(f"{found['parameters']:,} parameters, of which {found['trained']:,} are trained.")


def _terms_in(path: Path) -> Terms:
    """Return the terms of a file that has nothing else, or of a server's settings."""
    if path.suffix == ".toml":
        table = read_toml(path)
        fields = table.get("terms", table)
    else:
        try:
            fields = json.loads(path.read_text())
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from None
        except ValueError as error:
            raise UserError(f"{path} is not JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise UserError(f"{path} holds no terms.")
    return Terms.from_fields(fields)
