"""Measure the README's example anew: run its command as written, and put its output and its picture where the README shows them.

    python scripts/refresh_readme.py

Leave the machine alone meanwhile: what other programs take shows as contention.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = re.compile(r"(^## One command\n\n```sh\n(?P<command>.*?)\n```\n.*?^```text\n)(?P<output>.*?)(^```$)", re.DOTALL | re.MULTILINE)
PROGRESS = re.compile(r"^(starting|counting FLOPs|looking at a step|building|warming up|measuring)\b")


def without_progress(output: str) -> str:
    """Return what stays on a terminal; the lines on MLflow name this machine's folders and are left out."""
    lines = [line.rstrip() for line in output.splitlines() if not PROGRESS.match(line) and not line.startswith(("MLflow:", "curve:"))]
    return "\n".join(lines).strip() + "\n"


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    example = EXAMPLE.search(text)
    if example is None:
        raise SystemExit("README.md has no example under 'One command'")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as place:
        ended = subprocess.run(example["command"], shell=True, cwd=place, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        (folder,) = (Path(place) / "runs").iterdir()
        shutil.copyfile(folder / "scaling.png", ROOT / "docs" / "images" / "scaling.png")
    readme.write_text(text[: example.start("output")] + without_progress(ended.stdout) + text[example.end("output") :], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
