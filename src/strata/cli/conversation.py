"""The history of a chat: turns that were answered, and the system message before them."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strata.cli.answer import Answer
from strata.cli.keyboard import interruptible
from strata.cli.model import TextModel
from strata.cli.screen import Screen
from strata.engine import SamplingParams
from strata.errors import UsageError
from strata.text.chat import encode_chat


class Conversation:
    """A question enters the history together with its answer, so that roles alternate as templates demand."""

    def __init__(
        self, model: TextModel, params: SamplingParams, stops: Sequence[str], system: str | None
    ) -> None:
        self.system = system
        self._model, self._params, self._stops = model, params, stops
        self._template = model.template()
        self._turns: list[dict[str, Any]] = []
        self._question: str | None = None  # the last one, answered or not
        self._begin = 0  # where it stands in the turns, or would
        self._retries = 0

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All messages, as the protocol has them."""
        return self._before(len(self._turns))

    def _before(self, turn: int) -> list[dict[str, Any]]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self._turns[:turn]]

    def ask(self, text: str) -> None:
        """Answer a message on the screen. Interrupted, what came of the answer stays; if none came, nothing does."""
        self._question, self._begin, self._retries = text, len(self._turns), 0
        self._answer(text)

    def retry(self) -> None:
        """Answer the last message again, in the place of its answer, with the next seed."""
        if self._question is None:
            raise UsageError("/retry: nothing has been asked yet")
        self._retries += 1
        self._answer(self._question)

    def clear(self) -> None:
        """Forget the turns; the system message stays."""
        self._turns.clear()
        self._question = None

    def save(self, path: Path) -> None:
        """Write {"messages": [...]}, the body of a request to a server."""
        text = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2)
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None

    def _answer(self, text: str) -> None:
        question = {"role": "user", "content": text}
        prompt = encode_chat(self._model.tokenizer, self._template, [*self._before(self._begin), question])
        answer = Answer(self._model.engine, self._model.tokenizer, self._stops, prompt.parser(None))
        params = dataclasses.replace(self._params, seed=(self._params.seed + self._retries) % 2**63)
        screen = Screen()
        try:
            with interruptible() as cancelled:
                answer.collect(prompt.token_ids, params, screen.write, cancelled)
        finally:
            if answer.num_tokens or answer.text or answer.reasoning:
                screen.close()
        if answer.text or answer.finish_reason != "abort":
            self._turns[self._begin :] = [question, _turn(answer)]


def _turn(answer: Answer) -> dict[str, Any]:
    reasoning = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
    return {"role": "assistant", "content": answer.text, **reasoning}
