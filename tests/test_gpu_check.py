"""scripts/gpu-check without a GPU: stages run on the emulated device, and a visit to a GPU loses nothing it found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_check import decide, runner
from gpu_check.files import FILES
from gpu_check.stages import STAGES, wrong
from gpu_check.wanted import Wanted

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "scripts",
    "",
    *(f"tests{p}" for p in ("", "/emulate", "/goldens", "/engine", "/tiers", "/backends", "/ops")),
)
# What this project needs and machines with a GPU lack.
LACKING = (
    "fastapi",
    "uvicorn",
    "starlette",
    "llguidance",
    "pydantic",
    "gguf",
    "openai",
    "anthropic",
    "hypothesis",
)


@pytest.fixture(scope="module")
def rehearse(tmp_path_factory):
    """Runs a python with what scripts/gpu-check gives it, as a rehearsal; files are made once."""
    work = tmp_path_factory.mktemp("work")
    env = os.environ | {"STRATA_CHECK_EMULATED": "1", "STRATA_CHECK_WORK": str(work), "PYTHONUNBUFFERED": "1"}
    env["PYTHONPATH"] = os.pathsep.join(str(ROOT / folder) for folder in FOLDERS)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )

    return run


def test_stages_run(rehearse, tmp_path):
    done = rehearse("-m", "gpu_check", "--stages", "3,10", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    reports = {n: json.loads((tmp_path / f"stage-{n}.json").read_text()) for n in (3, 10)}
    assert {"Q4_K", "F16"} <= set(reports[3])
    assert all(report["wrong"] == [] for report in reports.values())


def test_first_steps_and_a_hash_that_is_wrong(rehearse, tmp_path_factory):
    def step(name):
        line = rehearse("-m", "gpu_check.first", name).stdout.split("\x1e")[1]
        return json.loads(line)[1]

    assert step("dense layer")["good"]
    kept = next(tmp_path_factory.getbasetemp().glob("work*/wanted.json"))
    known = json.loads(kept.read_text())
    known["values"]["dense"] = "0" + known["values"]["dense"][1:]
    kept.write_text(json.dumps(known))
    assert not step("dense layer")["good"]


def test_stages_import_what_the_machines_have(rehearse):
    code = f"""
import sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {LACKING}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Lacking())
import gpu_check.runner
from strata.cli import main
"""
    done = rehearse("-c", code)
    assert done.returncode == 0, done.stderr
    done = rehearse("-c", code.replace("gpu_check.runner", "fastapi"))
    assert "ModuleNotFoundError: fastapi" in done.stderr


def test_a_stage_that_is_cut_or_breaks_leaves_what_it_found(tmp_path, monkeypatch):
    endings = {1: "import time; time.sleep(600)", 2: "import sys; sys.exit(5)", 3: ""}

    def command(number, out):
        kept = out / f"stage-{number}.json"
        code = f"""
import json, pathlib
part = pathlib.Path({str(kept)!r} + ".part")
part.write_text(json.dumps({{"figure": {number}, "wrong": ["place"]}}))
part.replace({str(kept)!r})
{endings[number]}
"""
        return [sys.executable, "-c", code]

    monkeypatch.setattr(runner, "_command", command)
    monkeypatch.setattr(runner, "STAGES", endings)
    monkeypatch.setattr(runner, "FILES_OF", {})
    assert runner.run_all([(1, 3.0), (2, 60.0), (3, 60.0)], 600.0, tmp_path) == 2
    found = [json.loads((tmp_path / f"stage-{n}.json").read_text()) for n in (1, 2, 3)]
    assert [f["figure"] for f in found] == [1, 2, 3]
    assert found[0]["ended"].startswith("cut")
    assert found[1]["ended"].startswith("ended with 5")
    assert "ended" not in found[2]
    assert runner.run_all([(1, 60.0)], 1.0, tmp_path) == 1  # no time to begin


def test_what_is_false_in_a_report_is_wrong():
    assert list(wrong({"a": True, "b": 0, "c": None, "d": [1.0, "x"]})) == []
    assert list(wrong({"a": {"b": [True, False]}, "c": False})) == ["a/b/1", "c"]


def test_a_choice_wins_by_more_than_turns_differ(capsys):
    def decided(other):
        turns = {"now": [100.0, 110.0, 90.0], "other": other}
        choices = {name: lambda turn, name=name: turns[name][turn] for name in turns}
        return decide.compare("speed", choices, "now", 3)["winner"]

    assert decided([104.0, 114.0, 94.0]) == "other"
    assert decided([100.5, 110.5, 90.4]) == "now"  # by less than a hundredth
    assert decided([130.0, 109.0, 120.0]) == "now"  # not in every turn
    assert "keep now" in capsys.readouterr().out


def test_wanted_values_are_of_this_tree_and_this_file(tmp_path, monkeypatch):
    monkeypatch.setattr("gpu_check.wanted.model_file", lambda name: tmp_path / name)
    (tmp_path / "a").write_bytes(b"bytes")
    carried, asked = tmp_path / "wanted.json", []

    def wanted():
        return Wanted({"x": ("a", lambda path: asked.append(path) or len(asked))}, carried)["x"]

    assert [wanted(), wanted()] == [1, 1]
    (tmp_path / "a").write_bytes(b"other")
    assert [wanted(), wanted()] == [2, 2]
    carried.write_text(carried.read_text().replace('"tree": "', '"tree": "0'))
    assert wanted() == 3


def test_stage_numbers():
    assert runner._parse("0,4:200") == [(0, 1e9), (4, 200.0)]
    with pytest.raises(SystemExit, match="there is no stage 99"):
        runner._parse("99")
    assert list(STAGES) == list(range(21))


def test_made_up_files_have_possible_sizes():
    """A rehearsal makes smaller ones, so that the GPU's machine would be the first to see these."""
    for make in FILES.values():
        make().geometry.checked()
