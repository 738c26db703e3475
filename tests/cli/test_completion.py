"""Shell completion: the scripts, and the words that a shell gets."""

import os
import shutil
import subprocess
import sys

import pytest

PROGRAM = "from strata.cli import main; main()"


def words(line, **more):
    """What bash is offered at the end of `line`."""
    parts = line.split(" ")
    asked = {"_STRATA_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(parts) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | asked | more,
    )
    return done.stdout.split()


def test_words():
    assert {"run", "chat", "serve", "config"} <= set(words("strata "))
    assert words("strata ch") == ["chat"]
    assert words("strata config ") == ["show"]
    assert words("strata chat --temp") == ["--temperature"]
    assert words("strata run --isa ") == ["auto", "generic", "avx2", "avxvnni", "avx512"]
    assert words("strata completion ") == ["bash", "zsh", "fish"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(strata, shell, tmp_path):
    done = strata("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert f"_STRATA_COMPLETE=complete_{shell}" in done.out
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(done.out)
        check = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}[shell]
        subprocess.run([*check, str(script)], check=True)


def test_other_shells(refused):
    assert refused("completion", "bsh", code=2) == (
        "no completion for bsh; there is one for bash, zsh, fish (did you mean bash?)"
    )
