"""`strata chat`: a conversation in the terminal."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli import inputs
from strata.cli.options import (
    COMPUTE,
    DRAFTS,
    MEMORY,
    SAMPLING,
    LogitBias,
    Model,
    Stop,
    System,
    engine_options,
    flag,
    taking,
)
from strata.config import OPTIONS, SamplingOptions
from strata.errors import StrataError

if TYPE_CHECKING:
    from strata.cli.conversation import Conversation

WELCOME = "Ctrl-C ends an answer, Ctrl-D the session; /help lists the commands."
AnswerTokens = Annotated[str | None, flag("max_tokens", default="until the context is full")]


@taking(*COMPUTE, "max_model_len", "prefill", *MEMORY, *DRAFTS)
@taking(*SAMPLING, before="logit_bias")
def chat(
    context: typer.Context,  # settings are read from it, by their names in strata.config
    model: Model,
    system: System = None,
    max_tokens: AnswerTokens = None,
    logit_bias: LogitBias = None,
    stop: Stop = None,
) -> None:
    """Talk with a model: each line of standard input is a message, answers go to stdout as they come.

    Lines that begin with a slash are commands; /help lists them. An answer interrupted by Ctrl-C stays in the
    conversation as far as it came.
    """
    sampling = SamplingOptions.resolve(context.params, {})
    if max_tokens is None:
        sampling = dataclasses.replace(sampling, max_tokens=int(OPTIONS["max_tokens"].high))
    options = engine_options(context.params)
    inputs.check_stops(stop or ())
    system = inputs.read_system(system)

    from strata.cli.conversation import Conversation
    from strata.cli.model import TextModel

    loaded = TextModel(model, options)
    params = loaded.params(sampling, logit_bias or ())
    talk(Conversation(loaded, params, stop or (), system))


def talk(conversation: "Conversation") -> None:
    """Until the input ends or /exit. At a terminal an error is told and the session goes on; elsewhere it ends."""
    from strata.cli import keyboard, slash
    from strata.cli.main import one_line

    terminal = keyboard.typed_at_terminal()
    if terminal:
        print(WELCOME, file=sys.stderr)
    for line in keyboard.lines():
        try:
            answer(conversation, line)
        except slash.Leave:
            return
        except StrataError as error:
            if not terminal:
                raise
            print(f"strata: error: {one_line(str(error))}", file=sys.stderr)


def answer(conversation: "Conversation", line: str) -> None:
    """One line: nothing, a command, or a message (where `//` stands for a slash at its beginning)."""
    from strata.cli import slash

    if line.startswith("/") and not line.startswith("//"):
        slash.execute(conversation, line.rstrip())
    elif line.strip():
        conversation.ask(line[1:] if line.startswith("//") else line)
