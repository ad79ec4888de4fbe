"""The command line: one command a file, a function named after its file whose docstring is the help.

Exit codes: 0 done; 1 something at or above ``--fail-on`` was found; 2 bad input, with one sentence on
standard error; 3 a fault of our own.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from stabilitylens import __version__
from stabilitylens.errors import BadInput
from stabilitylens.guard import DEBUG, debugging


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"stabilitylens {__version__}")
        raise typer.Exit


def _about(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)] = False,
) -> None:
    """Training-stability diagnostics for Transformers: what went wrong, or is about to."""


def app() -> typer.Typer:
    """All commands of this folder."""
    out = typer.Typer(callback=_about, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        command = getattr(importlib.import_module(f"{__name__}.{module}"), module, None)
        if callable(command) and not module.startswith("_"):
            out.command(module)(command)
    return out


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and leave with its exit code.

    Args:
        argv: the arguments after the program's name; those of the process where None.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(_run(argv))


def _run(argv: Sequence[str] | None) -> int:
    try:
        code = app()(args=argv, prog_name="stabilitylens", standalone_mode=False) or 0
        sys.stdout.flush()
        return code
    except (SystemExit, BrokenPipeError):  # the reader of our output has left; typer makes a SystemExit of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (BadInput, OSError) as error:
        return _say(_sentence(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", 130)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # typer's own errors; its base class moved between versions
        if usage is not None:
            said = " ".join(str(usage()).split()).rstrip(".")
            return _say(f"{said}; see stabilitylens --help", 2) if said else 2
        if debugging():
            raise
        what = f"{type(error).__name__}: {_one_line(error)}"
        return _say(f"a fault of our own, {what}; set {DEBUG}=1 to see where, and please report it", 3)


def _sentence(error: BadInput | OSError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return _one_line(error)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _say(sentence: str, code: int) -> int:
    typer.echo(f"stabilitylens: {sentence}", err=True)
    return code
