"""`strata chat` and `strata run --chat`: turns, commands, interrupts, and what stays of them."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from strata.cli import slash
from strata.cli.conversation import Conversation
from strata.cli.screen import Screen
from strata.engine import SamplingParams
from strata.engine.engine import GenerationStats
from strata.errors import UsageError
from strata.text import Tokenizer
from strata.text.byte_level import BYTE_TO_CHAR
from strata.text.chat import ChatTemplate, ContentDelta, ReasoningDelta

END = 256
TOKENIZER = Tokenizer.from_metadata(
    {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*(BYTE_TO_CHAR[i] for i in range(256)), "<end>"],
        "tokenizer.ggml.token_type": [1] * 256 + [3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": END,
    }
)
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}{% if m.reasoning_content is defined %} {{ m.reasoning_content }}"
    "{% endif %}]{{ m.content }}{% endfor %}[assistant]{% if thinking is defined %}<think>{% endif %}"
)


class Scripted:
    """An engine that gives the next of some answers; `at` is called with the number of each token."""

    def __init__(self, answers, at=lambda _: None):
        self.answers, self.at = iter(answers), at
        self.prompts, self.seeds = [], []
        self.stats = GenerationStats()

    def generate(self, prompt_token_ids, sampling, cancelled):
        self.prompts.append(TOKENIZER.decode(prompt_token_ids))
        self.seeds.append(sampling.seed)
        for number, token in enumerate([*TOKENIZER.encode(next(self.answers), False, False), END]):
            self.at(number)
            if cancelled():
                return
            yield token


def converse(engine, system=None, template=TEMPLATE):
    model = SimpleNamespace(engine=engine, tokenizer=TOKENIZER, template=lambda: ChatTemplate(template))
    params = SamplingParams(stop_token_ids=frozenset({END}), seed=5)
    return Conversation(model, params, (), system)


def interrupt_at(number):
    return lambda at: os.kill(os.getpid(), signal.SIGINT) if at == number else None


def test_each_turn_sees_the_ones_before_it(capsys):
    engine = Scripted(["one", "two"])
    talk = converse(engine, system="S")
    talk.ask("a")
    talk.ask("b")
    assert engine.prompts == [
        "[system]S[user]a[assistant]",
        "[system]S[user]a[assistant]one[user]b[assistant]",
    ]
    assert capsys.readouterr().out == "one\ntwo\n"


def test_retry_takes_the_place_of_the_answer_with_the_next_seed():
    engine = Scripted(["one", "two", "three", "four"])
    talk = converse(engine)
    talk.ask("a")
    talk.ask("a")
    talk.retry()
    talk.retry()
    assert engine.seeds == [5, 5, 6, 7]
    assert engine.prompts[1:] == ["[user]a[assistant]one[user]a[assistant]"] * 3
    assert [m["content"] for m in talk.messages] == ["a", "one", "a", "four"]


def test_an_interrupted_answer_stays_as_far_as_it_came(capsys):
    handler = signal.getsignal(signal.SIGINT)
    talk = converse(Scripted(["partial", "more"], interrupt_at(4)))
    talk.ask("a")
    assert talk.messages[1]["content"] == "part"
    assert capsys.readouterr().out == "part\n"
    assert signal.getsignal(signal.SIGINT) is handler


def test_interrupted_before_its_first_word_the_question_leaves_too():
    engine = Scripted(["one", "two", "three"], interrupt_at(0))
    talk = converse(engine)
    talk.ask("a")
    assert talk.messages == []
    engine.at = lambda _: None
    talk.retry()
    assert [m["content"] for m in talk.messages] == ["a", "two"]
    engine.at = interrupt_at(0)
    talk.retry()
    assert [m["content"] for m in talk.messages] == ["a", "two"], "an answer is kept until there is another"


def test_a_second_interrupt_is_not_held_back():
    def twice(_):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    talk = converse(Scripted(["one"], twice))
    with pytest.raises(KeyboardInterrupt):
        talk.ask("a")


def test_reasoning_is_kept_apart(capsys):
    engine = Scripted(["why</think>\n\nso", "then</think>next"])
    talk = converse(engine, template=TEMPLATE.replace("thinking is defined", "true"))
    talk.ask("a")
    assert talk.messages[1] == {"role": "assistant", "content": "so", "reasoning_content": "why"}
    assert capsys.readouterr().out == "so\n"
    talk.ask("b")
    assert engine.prompts[1] == "[user]a[assistant why]so[user]b[assistant]<think>"


@pytest.mark.parametrize(("terminal", "shown"), [(True, "\x1b[2mwhy not\x1b[0m\n\nso\n"), (False, "so\n")])
def test_reasoning_is_dimmed_at_a_terminal(capsys, monkeypatch, terminal, shown):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    screen = Screen()
    for event in (ReasoningDelta("why"), ReasoningDelta(" not"), ContentDelta("so")):
        screen.write(event)
    screen.close()
    assert capsys.readouterr().out == shown


def test_commands(tmp_path, capsys):
    engine = Scripted(["one", "two", "three"])
    talk = converse(engine)
    slash.execute(talk, "/system Be brief.")
    talk.ask("a")
    slash.execute(talk, f"/save {tmp_path / 'c.json'}")
    roles = [m["role"] for m in json.loads((tmp_path / "c.json").read_text())["messages"]]
    assert roles == ["system", "user", "assistant"]
    slash.execute(talk, "/clear")
    assert [m["role"] for m in talk.messages] == ["system"]
    slash.execute(talk, "/system")
    assert talk.messages == []
    capsys.readouterr()
    slash.execute(talk, "/help")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(slash.COMMANDS)
    with pytest.raises(slash.Leave):
        slash.execute(talk, "/exit")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("/hepl", "did you mean /help?"),
        ("/zzz", "/help lists them"),
        ("/save", "/save needs a file"),
        ("/save /nowhere/x", "No such file"),
        ("/retry", "nothing has been asked yet"),
        ("/clear all", "takes nothing behind it, got 'all'"),
    ],
)
def test_commands_that_make_no_sense(line, text):
    with pytest.raises(UsageError) as refused:
        slash.execute(converse(Scripted([])), line)
    assert text in str(refused.value)


CAPITAL = "What is the capital of France?"


def test_chat_through_a_pipe(strata, smollm2_path, tmp_path):
    lines = f"{CAPITAL}\n\n/save {tmp_path / 'c.json'}\n/exit\nnever\n"
    base = ("--model", smollm2_path, "--system", "Be brief.", "--max-context", 512)
    done = strata("chat", *base, stdin=lines.encode())
    assert (done.code, done.out, done.err) == (0, "The capital of France is Paris.\n", "")
    saved = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [m["content"] for m in saved] == ["Be brief.", CAPITAL, "The capital of France is Paris."]
    once = strata("run", "--chat", *base, CAPITAL)
    assert once.out == done.out


def test_a_slash_at_the_beginning_of_a_message(strata, smollm2_path, tmp_path):
    lines = f"//etc\n/save {tmp_path / 'c.json'}\n"
    strata("chat", "--model", smollm2_path, "--max-tokens", 1, stdin=lines.encode())
    assert json.loads((tmp_path / "c.json").read_text())["messages"][0]["content"] == "/etc"


@pytest.mark.parametrize(
    ("stdin", "code", "text"),
    [
        (b"/hlep\nnever\n", 2, "no command /hlep (did you mean /help?)"),
        (b"caf\xe9\n", 2, "the line is not valid UTF-8: byte 0xe9 at offset 3"),
        (b"word " * 200, 1, "a context holds at most 64"),
    ],
)
def test_errors_end_a_chat_that_nobody_watches(refused, smollm2_path, stdin, code, text):
    assert text in refused("chat", "--model", smollm2_path, "--max-context", 64, stdin=stdin, code=code)


def test_a_system_message_needs_a_chat(refused):
    assert "--system needs --chat" in refused("run", "--model", "x", "--system", "S", "hello", code=2)


# Ctrl-C is a signal for whom the terminal belongs to; a job in the background inherits it ignored.
AT_TERMINAL = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
from strata.cli import main
main()
"""


class Terminal:
    """A chat at a pseudo-terminal."""

    def __init__(self, *arguments):
        self.end, theirs = pty.openpty()
        self.unread = b""
        command = [sys.executable, "-c", AT_TERMINAL, "chat", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)

    def read_until(self, text):
        """What was shown up to `text`."""
        while text not in self.unread:
            assert select.select([self.end], [], [], 120)[0], self.unread
            self.unread += os.read(self.end, 4096)
        seen, _, self.unread = self.unread.partition(text)
        return seen

    def type(self, keys):
        os.write(self.end, keys)

    def wait_until_it_waits(self):
        """The prompt is shown a moment before the line is waited for: until the main thread has slept a while."""
        before = None
        while (now := self._state()) != before or now[0] != "S":
            before = now
            time.sleep(0.1)

    def _state(self):
        """Whether the main thread sleeps (`S`), and its ticks of processor time."""
        fields = (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/stat")
            .read_text()
            .rpartition(") ")[2]
            .split()
        )
        return fields[0], fields[11], fields[12]


def test_a_session_at_a_terminal_outlives_errors_and_interrupts(smollm2_path):
    chat = Terminal("--model", smollm2_path, "--max-context", 2048, "--system", "Be brief.")
    try:
        chat.read_until(b"> ")
        chat.type(b"/hepl\n")
        assert b"did you mean /help?" in chat.read_until(b"> ")
        chat.wait_until_it_waits()
        chat.type(b"dropped\x03")
        chat.read_until(b"> ")
        chat.type(b"Write a story of a thousand words about the sea.\n")
        chat.read_until(b"sea.\r\n")
        chat.read_until(b" the ")
        chat.type(b"\x03")
        chat.read_until(b"\r\n")
        chat.read_until(b"> ")
        chat.type(b"/retry me\n")
        assert b"/retry takes nothing" in chat.read_until(b"> ")
        chat.type(b"\x04")
        assert chat.process.wait(timeout=60) == 0
    finally:
        chat.process.kill()
        os.close(chat.end)
