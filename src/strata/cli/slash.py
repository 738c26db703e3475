"""The /commands of a chat."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from strata.cli.conversation import Conversation
from strata.errors import UsageError


class Leave(Exception):
    """The session is over."""


@dataclass(frozen=True)
class Command:
    """`run` takes the conversation and what stands behind the name."""

    usage: str
    help: str
    run: Callable[[Conversation, str], None]


def execute(conversation: Conversation, line: str) -> None:
    """Carry out a line that begins with a slash; UsageError names the nearest command for an unknown one."""
    name, _, argument = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {near[0]}?" if near else "/help lists them"
        raise UsageError(f"no command {name} ({hint}); // begins a message with a slash")
    argument = argument.strip()
    if argument and " " not in command.usage:
        raise UsageError(f"{name} takes nothing behind it, got {argument!r}")
    command.run(conversation, argument)


def _help(_conversation: Conversation, _argument: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        print(f"{command.usage.ljust(width)}  {command.help}")


def _system(conversation: Conversation, text: str) -> None:
    conversation.system = text or None


def _save(conversation: Conversation, file: str) -> None:
    if not file:
        raise UsageError("/save needs a file: /save FILE")
    conversation.save(Path(file).expanduser())


def _exit(_conversation: Conversation, _argument: str) -> None:
    raise Leave


COMMANDS = {
    "/help": Command("/help", "List these commands.", _help),
    "/clear": Command("/clear", "Forget the conversation; the system message stays.", lambda c, _: c.clear()),
    "/system": Command("/system TEXT", "Set the system message; without a text, remove it.", _system),
    "/save": Command("/save FILE", "Write the conversation as JSON.", _save),
    "/retry": Command("/retry", "Answer the last message again, with the next seed.", lambda c, _: c.retry()),
    "/exit": Command("/exit", "Leave, as Ctrl-D does.", _exit),
}
