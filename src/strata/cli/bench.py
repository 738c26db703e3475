"""`strata bench`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strata.cli.bench_serve import bench_serve
from strata.cli.options import Json, count, parse_count
from strata.cli.output import print_json
from strata.errors import UsageError

if TYPE_CHECKING:
    from strata.bench.cache import CacheReport, Tally

bench_app = typer.Typer(help="Measure parts of the engine, or a server.", no_args_is_help=True)
bench_app.command("serve")(bench_serve)

Trace = typer.Option("--trace", metavar="FILE", help="Routing trace, as --trace-routes writes it.")
Sizes = typer.Option("--sizes", metavar="P,P", help="Cache sizes in percent of the experts' bytes.")


@bench_app.command()
def cache(
    trace: Annotated[Path, Trace],
    sizes: Annotated[str, Sizes] = "12.5,25,35,52",
    rows: Annotated[str, count("--rows", "Rows of a step.")] = "1",
    quota_mib: Annotated[str, count("--quota-mib", "MiB that our policy may move a step; 0: any.")] = "0",
    as_json: Json = False,
) -> None:
    """Replay a routing trace against expert caches: LRU, LFU, our policy, and one that knows the future."""
    shares = [_percent(text) for text in sizes.split(",")]
    step_rows, quota = parse_count("--rows", rows), parse_count("--quota-mib", quota_mib, 0)

    from strata.bench.cache import measure_caches
    from strata.memory.route_trace import RouteTrace

    reports = measure_caches(RouteTrace.read(trace), shares, step_rows, quota << 20)
    if as_json:
        print_json([_json(r) for r in reports])
        return
    print(
        f"{'cache':>7} {'LRU':>7} {'LFU':>7} {'ours':>7} {'best':>7} {'gap closed':>11} {'moved, of LRU':>14}"
    )
    for r in reports:
        moved = r.ours.moved_bytes / max(r.lru.moved_bytes, 1)
        rates = " ".join(f"{t.hit_rate:>7.2%}" for t in (r.lru, r.lfu, r.ours, r.clairvoyant))
        print(f"{r.share:>7.1%} {rates} {r.gap_closed:>11.1%} {moved:>14.2f}")


def _percent(text: str) -> float:
    try:
        value = float(text) / 100
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise UsageError(f"--sizes has {text!r}; a size is above 0 and at most 100 percent")
    return value


def _json(report: "CacheReport") -> dict[str, Any]:
    def tally(t: "Tally") -> dict[str, Any]:
        return {"hit_rate": t.hit_rate, "hits": t.hits, "asked": t.asked, "moved_bytes": t.moved_bytes}

    parts = {name: tally(getattr(report, name)) for name in ("lru", "lfu", "ours", "clairvoyant")}
    return {"share": report.share, "nbytes": report.nbytes, "gap_closed": report.gap_closed, **parts}
