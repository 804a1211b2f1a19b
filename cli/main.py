"""The command `coinflower`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from coinflower.accounting.errors import UserError
from coinflower.accounting.ledger.errors import LedgerError
from coinflower.cli.later import Later
from coinflower.deploy.core_dumps import forbid_core_dumps
from coinflower.deploy.errors import DefectError, DeploymentError
from coinflower.deploy.terminal import complain, write_what_the_terminal_can_show

EXIT_DEFECT = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
DEBUG = "--debug"

COMMANDS = (
    Later("epsilon", "privacy:epsilon", "Print the ε that these rounds cost at this δ."),
    Later("delta", "privacy:delta", "Print the δ that these rounds reach at this ε."),
    Later(
        "sigma",
        "privacy:sigma",
        "Print the least noise multiplier that keeps these rounds within (ε, δ).",
    ),
    Later("rounds", "privacy:rounds", "Print how many rounds fit into (ε, δ)."),
    Later(
        "compare",
        "compare:compare",
        "Compare all schemes, with the realised lower bound. Give two of σ, ε and δ.",
    ),
    Later(
        "coin-map",
        "research.coin_map:coin_map",
        "Draw when a coin pays: noise with p < 1 against p = 1 at the same batch, as a map.",
    ),
    Later(
        "plan",
        "planning.plan:plan",
        "Find p, q, cap and σ for a budget; write terms, a policy and the commands to type.",
    ),
    Later(
        "explain",
        "explain:explain",
        "Explain what the ε that a data set has spent means, and what it does not.",
    ),
    Later(
        "new",
        "new:new",
        "Begin a project: data to try, a schema, a policy and the command to type.",
    ),
    Later(
        "run",
        "run:run",
        "Train with a real local federation: a SuperLink, clients with ledgers, and a server.",
    ),
    Later(
        "statistics",
        "statistics:statistics",
        "Ask clients for counts, means and quantiles of columns, with noise and for a price.",
    ),
    Later(
        "simulate",
        "research.simulate:simulate",
        "Simulate thousands of clients; any analysis may choose σ, but ε is one that holds.",
    ),
    Later(
        "audit",
        "research.audit:audit",
        "Attack the shipped client and server to find a lower bound on their privacy loss.",
    ),
    Later(
        "client",
        "machines.client:client",
        "Join a federation as a data owner and stay until Ctrl-C or SIGTERM.",
    ),
    Later(
        "status",
        "machines.status:status",
        "Show who is online, the round, the metrics, refusals and the last error of a run.",
    ),
    Later(
        "health",
        "machines.status:health",
        "Exit with 0 if the client or server on this machine is healthy, with 1 otherwise.",
    ),
    Later(
        "paper",
        "research.paper:app",
        "Draw the paper's figures and its table of σ next to what really holds.",
    ),
    Later("data", "data:app", "Draft a table's schema, and check what a client would read."),
    Later("model", "model:app", "Print what a model is, so that a policy can pin it."),
    Later(
        "ledger",
        "ledger.records:app",
        "Create, inspect, pause and back up a data set's privacy ledger.",
    ),
    Later("keys", "machines.keys:app", "Make keys and certificates for separate machines."),
    Later(
        "server",
        "machines.server:app",
        "Run a server, submit experiments to it, choose who may join.",
    ),
    Later("notary", "machines.notary:app", "Run a notary, which opens sums and nothing else."),
)
"""All commands; a summary is the first sentence of the command's own help."""


class _Commands(TyperGroup):
    """The commands; typer wants the class of a group, not the group."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {str(command.name): command for command in COMMANDS}


app = typer.Typer(
    name="coinflower",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

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
