"""`strata run`: one prompt, one answer."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli import inputs
from strata.cli.options import (
    COMPUTE,
    DRAFTS,
    MEMORY,
    SAMPLING,
    Json,
    LogitBias,
    MaxTokens,
    Model,
    Stop,
    System,
    engine_options,
    taking,
)
from strata.cli.output import print_json
from strata.config import SamplingOptions
from strata.errors import UsageError

if TYPE_CHECKING:
    from strata.cli.model import TextModel
    from strata.text.chat import OutputParser

Prompt = typer.Argument(metavar="[PROMPT]", help="The prompt; - reads it from standard input.")
PromptOption = typer.Option("--prompt", "-p", metavar="TEXT", help="The prompt, where it begins with a dash.")
NoSpecial = typer.Option("--no-special", help="Take names of control tokens in the prompt as plain text.")
Chat = typer.Option("--chat", help="Put the prompt into the model's chat template, as a user's message.")


@taking(*COMPUTE, "max_model_len", "prefill", *MEMORY, *DRAFTS, before="as_json")
@taking(*SAMPLING, before="logit_bias")
def run(
    context: typer.Context,  # settings are read from it, by their names in strata.config
    model: Model,
    prompt: Annotated[str | None, Prompt] = None,
    prompt_option: Annotated[str | None, PromptOption] = None,
    chat: Annotated[bool, Chat] = False,
    system: System = None,
    max_tokens: MaxTokens = None,
    logit_bias: LogitBias = None,
    stop: Stop = None,
    no_special: Annotated[bool, NoSpecial] = False,
    as_json: Json = False,
) -> None:
    """Continue a prompt, or with --chat answer it: text to stdout as it comes, speeds to stderr.

    Without --chat the prompt is taken as it is; control tokens such as <|im_start|> may be written out.
    """
    sampling = SamplingOptions.resolve(context.params, {})
    options = engine_options(context.params)
    inputs.check_stops(stop or ())
    if system is not None and not chat:
        raise UsageError("--system needs --chat: a prompt taken as it is has no system message")
    system = inputs.read_system(system)
    text = inputs.read_prompt(prompt, prompt_option)

    from strata.cli.answer import Answer
    from strata.cli.model import TextModel
    from strata.cli.screen import Screen

    loaded = TextModel(model, options)
    params = loaded.params(sampling, logit_bias or ())
    if chat:
        prompt_token_ids, parser = _ask(loaded, text, system)
    else:
        prompt_token_ids, parser = loaded.tokenizer.encode(text, parse_special=not no_special), None
    answer = Answer(loaded.engine, loaded.tokenizer, stop or (), parser)
    if as_json:
        answer.collect(prompt_token_ids, params, lambda _: None)
        print_json(answer.report())
    else:
        screen = Screen()
        answer.collect(prompt_token_ids, params, screen.write)
        screen.close()
        print(answer.speeds(), file=sys.stderr)


def _ask(loaded: "TextModel", text: str, system: str | None) -> "tuple[list[int], OutputParser]":
    """One question through the model's template: its ids, and a parser of the answer."""
    from strata.text.chat import encode_chat

    messages = [] if system is None else [{"role": "system", "content": system}]
    prompt = encode_chat(loaded.tokenizer, loaded.template(), [*messages, {"role": "user", "content": text}])
    return prompt.token_ids, prompt.parser(None)
