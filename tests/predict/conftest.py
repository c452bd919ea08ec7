"""The scripts in ``benchmarks/`` hold the published data and the fits that the tests compare with."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
