"""Print what developing needs, one requirement a line: the `dev` extra and the extension's build tools."""

import shutil
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
needed = project["project"]["optional-dependencies"]["dev"] + project["build-system"]["requires"]
# An isolated build fetches these two by itself when the machine has none.
needed += [
    tool for tool, program in (("cmake>=3.22", "cmake"), ("ninja", "ninja")) if not shutil.which(program)
]
print("\n".join(needed))
