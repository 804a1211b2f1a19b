"""The command `coinflower`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import typer
from typer.models import CommandInfo

from accounting.ledger_file import LedgerError
from deploy import (
    cli_audit,
    cli_compare,
    cli_explain,
    cli_keys,
    cli_ledger,
    cli_machines,
    cli_paper,
    cli_plan,
    cli_privacy,
    cli_run,
    cli_simulate,
)
from deploy.cli_output import complain
from deploy.core_dumps import forbid_core_dumps
from deploy.errors import DeploymentError
from deploy.stated import StatedOnce

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
    cli_privacy.epsilon,
    cli_privacy.delta,
    cli_privacy.sigma,
    cli_privacy.rounds,
    cli_compare.compare,
    cli_plan.plan,
    cli_explain.explain,
    cli_run.run,
    cli_simulate.simulate,
    cli_audit.audit,
    cli_machines.client,
    cli_machines.status,
    cli_machines.health,
):
    app.command()(command)
app.add_typer(cli_paper.app, name="paper")
app.add_typer(cli_ledger.app, name="ledger")
app.add_typer(cli_keys.app, name="keys")
app.add_typer(cli_machines.server_app, name="server")


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
