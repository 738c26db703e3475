"""Builds the golden files of tests/goldens with transformers as the reference (docs/goldens.md)."""

import sys
from pathlib import Path

# The oracles, which every case is checked against, live with the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
