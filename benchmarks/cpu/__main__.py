"""Products of every block format at 1, 4, 512 rows, then whole models: our rates, llama.cpp's, of memory, in turns.

python -m benchmarks.cpu [MODEL.gguf ...] [--llama FOLDER] [--llama-python PYTHON] [--threads N]
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FETCHED = Path(".cache/models")  # where scripts/fetch_model.py leaves models


def run(script: str, options: list[str]) -> None:
    """Each part in a process of its own: threads that one side leaves waiting would slow the next."""
    done = subprocess.run([sys.executable, str(HERE / script), *options], check=False)
    if done.returncode != 0:
        sys.exit(f"{script} ended with {done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help=f"without any, those under {FETCHED}")
    parser.add_argument(
        "--llama", help="folder with libggml.so, else that of the installed llama_cpp package"
    )
    parser.add_argument("--llama-python", help="interpreter that has llama_cpp, for whole models")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of whole models")
    parser.add_argument("--product-threads", default="1", help="of products: one count or several")
    parser.add_argument("--formats", help="of products; without it, all")
    parser.add_argument("--seconds", default="1.0", help="for each line of products")
    parser.add_argument("--rounds", default="3", help="of each model")
    args = parser.parse_args()
    products = ["--threads", args.product_threads, "--seconds", args.seconds]
    products += [x for key in ("llama", "formats") if (v := getattr(args, key)) for x in (f"--{key}", v)]
    run("products.py", products)
    models = args.models or sorted(map(str, FETCHED.glob("*.gguf")))
    if not models:
        sys.exit(f"no model is named and none lies under {FETCHED}: whole models are left out")
    options = ["--threads", str(args.threads), "--rounds", args.rounds]
    run(
        "models.py",
        [*models, *options, *(["--llama-python", args.llama_python] if args.llama_python else [])],
    )


if __name__ == "__main__":
    main()
