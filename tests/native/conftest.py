"""Block makers of tests/quants serve these tests too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "quants"))
