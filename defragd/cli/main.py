"""The command line's root: finds commands lazily, turns every failure into one line and an exit code.

0 done, 1 failed, 2 wrong usage or bad input, 3 the cluster cannot be read. Tracebacks with ``-v`` only.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from defragd import __version__
from defragd.errors import DefragError

COMMANDS: dict[str, str] = {
    "plan": "Compute a plan; changes nothing.",
    "score": "Fragmentation of cluster, pools, nodes, devices.",
    "explain": "Why (not) movable, drainable, a target.",
    "snapshot": "Save everything that a plan needs.",
    "policy": "Validate, list and show policies; their start times.",
    "history": "Runs and what became of them.",
    "approve": "Let a run that waits for approval begin.",
    "pause": "Hold a run, or everything.",
    "resume": "Go on with a paused run, or with everything.",
    "cancel": "End a run; what is under way ends cleanly.",
    "run-now": "Plan a policy now, in its own mode.",
    "doctor": "Look over cluster, HAMi, rights, webhook; say what to mend.",
    "run": "Run the daemon on a cluster.",
    "demo": "The whole daemon on a simulated cluster.",
    "simulate": "Policies against a simulated cluster over time.",
    "completion": "Print a shell's completion script.",
    "version": "Show the version.",
}
"""Commands and their one-line help, so that listing them imports none of them."""
PACKAGE = "defragd.cli.commands"
VERBOSE = ("-v", "--verbose")
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Full or failing disks behind a redirected output."""


def _module(name: str) -> str:
    return f"{PACKAGE}.{name.replace('-', '_')}"


class LazyGroup(click.Group):
    """Imports a command's module when it is used; leaves out commands that this build does not have."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(_module(name)) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = importlib.import_module(_module(cmd_name)).command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if near:
                raise click.UsageError(f'No such command "{args[0]}", did you mean "{near[0]}"?', ctx) from None
            raise


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage or bad input, 3 the cluster cannot be read.",
)
@click.version_option(__version__, "-V", "--version", message="defragd %(version)s")
def cli() -> None:
    """Defragments HAMi-shared devices: scores, plans few moves, and carries each out to a proven place.

    Every command takes -v for a traceback when something fails.
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Console script. Never shows a traceback unless asked."""
    args = list(sys.argv[1:] if argv is None else argv)
    verbose = False
    for word in VERBOSE:
        while word in args[: args.index("--") if "--" in args else None]:
            args.remove(word)
            verbose = True
    sys.exit(run(args, verbose=verbose))


def run(args: list[str], *, verbose: bool = False) -> int:
    """One command to its exit code."""
    plugin = os.path.basename(sys.argv[0] or "").startswith("kubectl-")
    try:
        result = cli.main(args=args, prog_name="kubectl defrag" if plugin else "defragd", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except SystemExit as stop:
        return _code(stop.code)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.UsageError as error:
        hint = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        return _fail(" ".join(error.format_message().split()).rstrip(".,") + hint, 2)
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except BrokenPipeError:
        # The reader (head, less) has gone; nothing to say and nowhere to say it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except DefragError as error:
        if verbose:
            traceback.print_exc()
        return _fail(str(error), error.exit_code)
    except Exception as error:  # noqa: BLE001 - the last resort: one line instead of a traceback
        if verbose:
            traceback.print_exc()
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            return _fail(f"output cannot be written: {error.strerror}", 1)
        text = " ".join(str(error).split())[:300]
        return _fail(f"internal error: {type(error).__name__}: {text} (run again with -v for the traceback)", 1)
    return _code(result)


def complete() -> None:
    """`kubectl_complete-defrag`: kubectl runs it to complete `kubectl defrag ...`. Candidates, then a directive."""
    from click.shell_completion import ShellComplete

    words = sys.argv[1:] or [""]
    shell = ShellComplete(cli, {}, "kubectl defrag", "_DEFRAGD_COMPLETE")
    files = False
    for item in shell.get_completions(words[:-1], words[-1]):
        if item.type == "plain":
            print(f"{item.value}\t{item.help}" if item.help else item.value)
        else:
            files = True
    print(":0" if files else ":4")  # 4: what is listed is all there is; 0: file names, too


def _code(result: Any) -> int:
    return result if isinstance(result, int) else 0 if result is None else 1


def _fail(message: str, code: int) -> int:
    for line in message.splitlines() or [""]:
        click.echo(f"error: {line}", err=True)
    return code


if __name__ == "__main__":
    main()
