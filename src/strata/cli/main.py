"""The command tree, and the one place where errors become a line and an exit code."""

import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from strata import __version__, env, log
from strata.cli.bench import bench_app
from strata.cli.chat import chat
from strata.cli.completion import PROGRAM, VARIABLE, complete, completion
from strata.cli.convert import convert
from strata.cli.draft_vocab import draft_vocab_app
from strata.cli.evaluate import eval_app
from strata.cli.files import inspect, verify
from strata.cli.plan import plan
from strata.cli.run import run
from strata.cli.serve import config_app, serve
from strata.cli.speed import benchmark
from strata.cli.synth import synth_app
from strata.errors import StrataError, UsageError

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
BROKEN_PIPE = 141  # 128 + SIGPIPE

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command(short_help="Continue a prompt.")(run)
app.command(short_help="Talk with a model.")(chat)
app.command(short_help="Say what a model file holds.")(inspect)
app.command(short_help="Check that a model file is whole.")(verify)
app.command(short_help="Say where a model would lie in memory.")(plan)
app.command(short_help="Measure prompt and generation speed.")(benchmark)
app.command(short_help="Serve a model over OpenAI's and Anthropic's protocols.")(serve)
app.add_typer(bench_app, name="bench")
app.add_typer(config_app, name="config")
app.add_typer(eval_app, name="eval")
app.add_typer(draft_vocab_app, name="draft-vocab")
app.command(short_help="Make a GGUF file of a checkpoint.")(convert)
app.add_typer(synth_app, name="synth")
app.command(short_help="Print a shell's completion script.")(completion)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"strata {__version__}")
        raise typer.Exit


@app.callback()
def strata(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run GGUF language models. Each command explains itself: strata COMMAND --help."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line (default: this process's arguments) and exit; failures are one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character must not end an answer
            stream.reconfigure(errors="backslashreplace")
    for name in ("stdout", "stderr"):  # closed before the start, as is usual for a background job
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  (lives as long as the process)
    if env.is_set(VARIABLE):
        complete(app)
    given = sys.argv[1:] if arguments is None else arguments
    sys.exit(_invoke(given or ["--help"]))


def _invoke(arguments: Sequence[str]) -> int:
    """Exit code of a command line, its failures told."""
    try:
        return _run(arguments)
    except StrataError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(_usage_message(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone. Flushing at exit would fail again, so give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # the last resort: nobody should meet a traceback unasked
        return _fail(_surprise(error), 1)


def _run(arguments: Sequence[str]) -> int:
    log.setup(_log_level())
    # Not command.main(): that ends the process itself on an interrupt or a broken pipe.
    command = typer.main.get_command(app)
    try:
        with command.make_context(PROGRAM, list(arguments)) as context:
            command.invoke(context)
        code = 0
    except typer.Exit as asked:  # --help and --version end this way
        code = asked.exit_code
    sys.stdout.flush()
    return code


def _log_level() -> str:
    level = env.log_level()
    if level not in log.LEVELS:
        raise UsageError(f"STRATA_LOG is {level}; it must be one of {', '.join(log.LEVELS)}")
    return level


def _usage_message(error: typer.TyperException) -> str:
    """The parser's own message in one line, with the nearest option where it knows one."""
    near = getattr(error, "possibilities", None)
    if near and type(error).__name__ == "NoSuchOption":
        return f"no such option: {getattr(error, 'option_name', '')} (did you mean {near[0]}?)"
    message = error.format_message().rstrip(".")
    return message[:1].lower() + message[1:]


def _surprise(error: Exception) -> str:
    if isinstance(error, OSError):  # a full disk, for example
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    if isinstance(error, MemoryError):
        return "out of memory: try a shorter --max-context or a smaller model"
    return f"unexpected {type(error).__name__}: {error} (set STRATA_LOG=debug for the traceback)"


def _fail(message: str, code: int) -> int:
    if env.log_level() == "debug":
        traceback.print_exc()
    log.tell(f"error: {one_line(message)}", logging.ERROR)
    return code


def one_line(text: str) -> str:
    """`text` with everything escaped that would break the line or the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
