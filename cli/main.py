"""The command `coinflower`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import typer
from typer.models import CommandInfo

from coinflower.accounting.ledger.file import LedgerError
from coinflower.cli import (
    audit,
    compare,
    explain,
    keys,
    ledger,
    machines,
    paper,
    plan,
    privacy,
    run,
    simulate,
)
from coinflower.cli.stated import StatedOnce
from coinflower.deploy.core_dumps import forbid_core_dumps
from coinflower.deploy.errors import DeploymentError
from coinflower.deploy.terminal import complain

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="coinflower",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated DP-SGD with random participation, and what it really costs.",
)
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
    """Run the command line; exit 2 with one sentence on anything a user can mend.

    Anything else is a defect and keeps its trace.
    """
    forbid_core_dumps()
    code: int | None = EXIT_USER_ERROR
    try:
        code = app(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
    except click.ClickException as error:
        complain(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except (ValueError, LedgerError, DeploymentError) as error:
        complain(str(error))
    except OSError as error:
        complain(f"{error.filename or 'The system'}: {error.strerror or error}.")
    sys.exit(code)
