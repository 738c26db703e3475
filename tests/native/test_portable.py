"""The portable build for aarch64: every native source compiles, and products have this machine's bits."""

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
FLAGS = ["-std=c++20", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-DSTRATA_LEVEL=generic"]
INCLUDES = [f"-I{NATIVE}", f"-I{NATIVE / 'include'}"]
CROSS = shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")

needs_cross = pytest.mark.skipif(
    CROSS is None, reason="no cross compiler: apt-get install g++-aarch64-linux-gnu"
)
needs_emulator = pytest.mark.skipif(EMULATOR is None, reason="no emulator: apt-get install qemu-user-static")


def compile_with(compiler, *arguments):
    return subprocess.run(
        [compiler, *FLAGS, *INCLUDES, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@needs_cross
def test_every_source_compiles_for_aarch64(tmp_path):
    """Bindings aside, which need that processor's Python. What kernels begin with is parsed once; one that does not
    include it fails in every other build."""
    sources = [p for part in ("cpu/kernels", "cpu", "text") for p in sorted((NATIVE / part).glob("*.cpp"))]
    assert len(sources) > 40
    begin = tmp_path / "begin.h"
    begin.write_text('#include "cpu/kernels/kernel.h"\n')

    def check(source):
        more = ["-include", begin] if source.parent.name == "kernels" else []
        return compile_with(CROSS, "-fsyntax-only", "-Wall", "-Winvalid-pch", *more, source)

    done = compile_with(CROSS, "-Wall", "-x", "c++-header", begin, "-o", f"{begin}.gch")
    assert done.returncode == 0 and not done.stderr, done.stderr[:2000]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for source, done in zip(sources, pool.map(check, sources), strict=True):
            assert done.returncode == 0, f"{source.name}: {done.stderr[:2000]}"
            assert not done.stderr, f"{source.name} warns: {done.stderr[:2000]}"


@needs_cross
def test_what_does_not_compile_is_seen(tmp_path):
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text("#include <immintrin.h>\n")
    assert compile_with(CROSS, "-fsyntax-only", wrong).returncode != 0


def build(compiler, out):
    sources = [NATIVE / "cpu/kernels/linear_rows.cpp", Path(__file__).parent / "portable/products.cpp"]
    done = compile_with(compiler, "-O1", "-static", "-o", out, *sources)
    assert done.returncode == 0, done.stderr[:2000]
    return out


@needs_cross
@needs_emulator
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ for this machine's side")
def test_products_have_the_same_bits_on_aarch64(tmp_path):
    here, there = build("g++", tmp_path / "here"), build(CROSS, tmp_path / "there")

    def output(*command):
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout

    want = output(here)
    assert len(want.splitlines()) > 20 and all(line.split()[1] == "0" for line in want.splitlines())
    assert output(EMULATOR, there) == want
    assert output(EMULATOR, there, "damaged") != want
