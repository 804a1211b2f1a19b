"""The command `coinflower`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Annotated

import click
import typer
from typer.models import CommandInfo

from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.cli import (
    audit,
    compare,
    explain,
    keys,
    ledger,
    ledger_stops,
    machines,
    paper,
    plan,
    privacy,
    run,
    simulate,
)
from coinflower.cli.stated import StatedOnce
from coinflower.deploy.core_dumps import forbid_core_dumps
from coinflower.deploy.errors import DefectError, DeploymentError
from coinflower.deploy.terminal import complain, write_what_the_terminal_can_show

EXIT_DEFECT = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
DEBUG = "--debug"

app = typer.Typer(
    name="coinflower",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"coinflower {version('coinflower')}")
        raise typer.Exit


@app.callback()
def coinflower(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
    _debug: Annotated[
        bool, typer.Option(DEBUG, help="Print the full trace of an error; allowed anywhere.")
    ] = False,
) -> None:
    """Federated DP-SGD with random participation, and what it really costs."""


for command in (
    privacy.epsilon,
    privacy.delta,
    privacy.sigma,
    privacy.rounds,
    compare.compare,
    plan.plan,
    explain.explain,
    run.run,
    simulate.simulate,
    audit.audit,
    machines.client,
    machines.status,
    machines.health,
):
    app.command()(command)
app.add_typer(paper.app, name="paper")
for stop in (ledger_stops.pause, ledger_stops.resume, ledger_stops.leave, ledger_stops.release):
    ledger.app.command()(stop)
app.add_typer(ledger.app, name="ledger")
app.add_typer(keys.app, name="keys")
app.add_typer(machines.server_app, name="server")


def _every_command(part: typer.Typer) -> Iterator[CommandInfo]:
    yield from part.registered_commands
    for group in part.registered_groups:
        if group.typer_instance is not None:
            yield from _every_command(group.typer_instance)


for info in _every_command(app):
    info.cls = StatedOnce


def main() -> None:
    """Run the command line.

    Anything a user can mend is one sentence and exit code 2, with its trace after --debug. Anything
    else is a defect: it keeps its trace and exits with 1.
    """
    forbid_core_dumps()
    write_what_the_terminal_can_show()
    words, debug = _without_debug(sys.argv[1:])
    code: int | None = EXIT_USER_ERROR
    try:
        code = app(words, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
    except click.ClickException as error:
        complain(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except (UserError, LedgerError, DeploymentError) as error:
        if debug:
            traceback.print_exception(error)
        complain(str(error))
        if isinstance(error, DefectError):
            code = EXIT_DEFECT
    except OSError as error:
        if debug:
            traceback.print_exception(error)
        complain(f"{error.filename or 'The system'}: {error.strerror or error}.")
    sys.exit(code)


def _without_debug(words: Sequence[str]) -> tuple[list[str], bool]:
    """Take --debug out of the arguments, wherever it stands before a ``--``."""
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word != DEBUG]
    return [*options, *words[end:]], len(options) < end
