"""The rules of structure: who may import whom (docs/design.md), who reads the environment, who prints."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "strata"
BASE = "errors"  # typed errors are everyone's
PRINTERS = ("cli", "bench")


def read_levels(design: str) -> dict[str, int]:
    """Package to level, from the table of docs/design.md."""
    levels = {}
    for level, names in re.findall(r"^\| (\d+) \| ((?:`\w+`(?:, )?)+) \|", design, re.MULTILINE):
        levels.update(dict.fromkeys(re.findall(r"`(\w+)`", names), int(level)))
    return levels


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and package of every import of our own, wherever it stands."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "strata":
            names = [f"strata.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            names = [str(node.args[0].value)] if called in ("import_module", "__import__") else []
        for name in names:
            if name.startswith("strata."):
                yield node.lineno, name.split(".")[1]


def owner(path: Path, source: Path) -> str:
    """The package, or the module at the top, that a file belongs to; empty for strata/__init__.py."""
    part = path.relative_to(source).parts[0]
    return "" if part == "__init__.py" else part.removesuffix(".py")


def layer_faults(source: Path, levels: dict[str, int]) -> list[str]:
    """One line for each import that goes sideways or up, and for each package without a level."""
    faults = []
    for path in sorted(source.rglob("*.py")):
        package = owner(path, source)
        if package and package not in levels:
            faults.append(f"{path.relative_to(source)}: {package} has no level in docs/design.md")
            continue
        for line, target in imports(ast.parse(path.read_text(encoding="utf-8"))):
            if target in (package, BASE, "__version__"):
                continue
            if target not in levels:
                faults.append(
                    f"{path.relative_to(source)}:{line}: imports strata.{target}, which has no level"
                )
            elif levels[target] >= levels.get(package, -1):
                faults.append(f"{path.relative_to(source)}:{line}: {package} may not import {target}")
    return faults


def habit_faults(source: Path) -> list[str]:
    """One line for each reading of the environment outside env.py, each print or parser outside PRINTERS."""
    faults = []
    for path in sorted(source.rglob("*.py")):
        package = owner(path, source)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(source)}:{getattr(node, 'lineno', 0)}"
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
            if isinstance(node, ast.alias):
                name = node.name.split(".")[0]
            if package != "env" and name in ("environ", "environb", "getenv", "getenvb"):
                faults.append(f"{where}: reads the environment")
            if package not in PRINTERS and name in (
                "print",
                "argv",
                "argparse",
                "typer",
                "click",
                "rich",
                "getopt",
            ):
                faults.append(f"{where}: uses {name}")
    return faults


@pytest.fixture(scope="module")
def levels() -> dict[str, int]:
    return read_levels((ROOT / "docs" / "design.md").read_text(encoding="utf-8"))


def test_levels_are_read(levels):
    assert levels["gguf"] == 1
    assert levels["cli"] == max(levels.values())
    assert {"errors", "config", "env", "log", "hw", "engine", "text", "bench"} <= set(levels)


def test_imports_go_down(levels):
    assert layer_faults(SOURCE, levels) == []


def test_environment_and_terminal_have_one_place():
    assert habit_faults(SOURCE) == []


@pytest.mark.parametrize(
    "line",
    [
        "import strata.engine",
        "from strata.hw import cpu_count",
        "from strata import engine",
        "def late():\n    from strata.models import load",
        "if TYPE_CHECKING:\n    from strata.quants import table",
        "import importlib\nimportlib.import_module('strata.engine')",
        "from strata import nowhere",
    ],
)
def test_a_planted_import_is_seen(tmp_path, levels, line):
    (tmp_path / "gguf").mkdir()
    planted = tmp_path / "gguf" / "file.py"
    planted.write_text("import numpy\nfrom strata import _native\nfrom strata.errors import ModelFileError\n")
    assert layer_faults(tmp_path, levels) == []
    planted.write_text(line + "\n")
    assert len(layer_faults(tmp_path, levels)) == 1


@pytest.mark.parametrize(
    "line", ["import os\nx = os.environ['A']", "from os import getenv", "print(1)", "import typer"]
)
def test_a_planted_habit_is_seen(tmp_path, line):
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "file.py").write_text(line + "\n")
    assert len(habit_faults(tmp_path)) == 1


def test_a_package_without_a_level_is_seen(tmp_path, levels):
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("")
    assert "no level" in layer_faults(tmp_path, levels)[0]
