"""`strata run`: one prompt, one answer."""

import dataclasses
import sys
from typing import Annotated

import typer

from strata.cli import inputs
from strata.cli.options import (
    Backend,
    Isa,
    Json,
    Kv,
    MaxContext,
    Model,
    Prefill,
    Threads,
    engine_options,
    flag,
)
from strata.cli.output import print_json
from strata.config import SamplingOptions

Prompt = typer.Argument(metavar="[PROMPT]", help="The prompt; - reads it from standard input.")
PromptOption = typer.Option("--prompt", "-p", metavar="TEXT", help="The prompt, where it begins with a dash.")
LogitBias = typer.Option("--logit-bias", metavar="ID=X", help="Add X to the score of a token; repeatable.")
Stop = typer.Option("--stop", metavar="TEXT", help="End before this text; repeatable.")
NoSpecial = typer.Option("--no-special", help="Take names of control tokens in the prompt as plain text.")


def run(
    context: typer.Context,  # settings are read from it, by their names in strata.config
    model: Model,
    prompt: Annotated[str | None, Prompt] = None,
    prompt_option: Annotated[str | None, PromptOption] = None,
    max_tokens: Annotated[str | None, flag("max_tokens")] = None,
    temperature: Annotated[str | None, flag("temperature")] = None,
    top_k: Annotated[str | None, flag("top_k")] = None,
    top_p: Annotated[str | None, flag("top_p")] = None,
    min_p: Annotated[str | None, flag("min_p")] = None,
    repetition_penalty: Annotated[str | None, flag("repetition_penalty")] = None,
    presence_penalty: Annotated[str | None, flag("presence_penalty")] = None,
    frequency_penalty: Annotated[str | None, flag("frequency_penalty")] = None,
    seed: Annotated[str | None, flag("seed")] = None,
    logit_bias: Annotated[list[str] | None, LogitBias] = None,
    stop: Annotated[list[str] | None, Stop] = None,
    no_special: Annotated[bool, NoSpecial] = False,
    backend: Backend = None,
    threads: Threads = None,
    isa: Isa = None,
    kv: Kv = None,
    max_model_len: MaxContext = None,
    prefill: Prefill = None,
    as_json: Json = False,
) -> None:
    """Continue a prompt: text to stdout as it comes, speeds to stderr.

    The prompt is taken as it is, without a chat template; control tokens such as <|im_start|> may be written out.
    """
    sampling = SamplingOptions.resolve(context.params, {})
    options = engine_options(context.params)
    inputs.check_stops(stop or ())
    text = inputs.read_prompt(prompt, prompt_option)

    from strata.cli.answer import Answer
    from strata.engine import Engine, SamplingParams
    from strata.text import Tokenizer

    engine = Engine.load(model, options)
    tokenizer = Tokenizer.from_metadata(engine.model_file.metadata)
    params = SamplingParams(
        **dataclasses.asdict(sampling),
        logit_bias=inputs.parse_logit_bias(logit_bias or (), engine.model_config.vocab_size),
        stop_token_ids=frozenset(tokenizer.eos_ids),
    )
    answer = Answer(engine, tokenizer, stop or ())
    prompt_token_ids = tokenizer.encode(text, parse_special=not no_special)
    if as_json:
        answer.collect(prompt_token_ids, params, lambda _: None)
        print_json(answer.report())
    else:
        answer.collect(prompt_token_ids, params, _write)
        _write("\n")
        print(answer.speeds(), file=sys.stderr)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
