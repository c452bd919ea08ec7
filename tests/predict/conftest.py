"""The scripts in ``benchmarks/`` hold the published data and the fits that the tests compare with; ``trace_cases.py`` here has what is traced."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "benchmarks"), str(Path(__file__).resolve().parent)]
