"""`strata bench serve`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from strata import env
from strata.cli.inputs import read_text
from strata.cli.options import Json, count, parse_count
from strata.cli.output import print_json
from strata.errors import UsageError

APIS = ("chat", "completions")


def bench_serve(
    url: Annotated[str, typer.Option("--url", metavar="URL", help="Base address, with or without /v1.")],
    model: Annotated[
        str,
        typer.Option("--model", "-m", metavar="NAME", help="Model to ask for. [default: the first listed]"),
    ] = "",
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", metavar="FILE", help="File with the API key. [default: STRATA_API_KEY]"),
    ] = None,
    api: Annotated[str, typer.Option("--api", metavar="NAME", help="chat or completions.")] = "chat",
    concurrency: Annotated[str, count("--concurrency", "Streams at once; 0: no bound, with a rate.")] = "8",
    requests: Annotated[
        str, count("--requests", "Requests in all; 0: a stream each, or as many as --duration lets.")
    ] = "0",
    duration: Annotated[str, count("--duration", "Seconds during which requests are sent (a soak).")] = "0",
    prompt_len: Annotated[str, count("--prompt-len", "Tokens of each prompt, about.")] = "512",
    output_len: Annotated[str, count("--output-len", "Tokens of each answer.")] = "128",
    arrival: Annotated[
        str,
        typer.Option(
            "--arrival", metavar="HOW", help="together, rate (evenly) or poisson, both with --rate."
        ),
    ] = "together",
    rate: Annotated[float, typer.Option("--rate", metavar="X", help="Requests a second.", min=0.0)] = 0.0,
    seed: Annotated[str, count("--seed", "Of prompts and arrivals.")] = "0",
    keep_eos: Annotated[
        bool, typer.Option("--keep-eos", help="Let answers end by themselves: send no ignore_eos.")
    ] = False,
    extra: Annotated[
        str, typer.Option("--extra", metavar="JSON", help="More fields of each request's body, an object.")
    ] = "{}",
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FILE", help="Report of another run, to compare with.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the report there, as JSON.")
    ] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Load a server that speaks OpenAI's protocol, ours or another; report first tokens, gaps and rates."""
    if api not in APIS:
        raise UsageError(f"--api is {api}; it must be one of {', '.join(APIS)}")
    other = None if against is None else _read_object(read_text(against), f"{against}")
    from strata.bench import serve as client

    streams, seconds = parse_count("--concurrency", concurrency, 0), parse_count("--duration", duration, 0)
    given = parse_count("--requests", requests, 0)
    load = client.Load(
        streams,
        given or (0 if seconds else streams),
        parse_count("--prompt-len", prompt_len),
        parse_count("--output-len", output_len, 2),
        arrival,
        rate,
        seconds,
        parse_count("--seed", seed, 0),
        not keep_eos,
        _read_object(extra, "--extra"),
    )
    target = client.Target(url, _key(key_file), api)
    found = client.measure(target, model, load, _tell)
    if other is not None:
        found["against"] = client.compare(found["figures"], other.get("figures") or {}).to_json()
    if output is not None:
        _write(output, json.dumps(found, indent=2) + "\n")
    if plot_file is not None:
        title = f"{found['settings']['model']}: {found['figures']['requests']} requests"
        _write(plot_file, client.plot(title, found["timeline"], found["windows"]))
    print_json(found, indent=2) if as_json else print("\n".join(client.lines(found)))


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _key(file: Path | None) -> str:
    text = env.settings().get("STRATA_API_KEY", "") if file is None else read_text(file)
    return text.replace(",", "\n").strip().partition("\n")[0].strip()


def _read_object(text: str, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{name} is no JSON object")
    return found


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
