"""The command `coinflower`."""

from __future__ import annotations

import sys

import click
import typer

from accounting.ledger_file import LedgerError
from deploy import cli_ledger, cli_paper, cli_privacy
from deploy.cli_output import errors

# What a user can cause is told in one sentence; anything else is a defect and keeps its trace.
USER_ERRORS = (ValueError, LedgerError, OSError)
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
    cli_privacy.compare,
    cli_privacy.plan,
    cli_paper.paper,
):
    app.command()(command)
app.add_typer(cli_ledger.app, name="ledger")


def main() -> None:
    """Run the command line; exit 2 with one sentence on anything a user can mend."""
    try:
        code = app(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = EXIT_INTERRUPTED
    except USER_ERRORS as error:
        errors.print(f"Error: {error}", style="red", markup=False, highlight=False)
        code = EXIT_USER_ERROR
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code)
