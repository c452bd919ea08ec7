"""Every command of the README works as it is written, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE) for line in block.splitlines() if line.strip()]
OF_MAKE = {
    "make run": f"make --no-print-directory -C {shlex.quote(str(ROOT))} run ARGS=dry_run=true",  # measuring is what the other commands do
    "make test": f"make --dry-run --no-print-directory -C {shlex.quote(str(ROOT))} test",  # this test is run by it
}
MEASURING = "measure=quick"
SHORTER = " measure.rounds=2 measure.rounds_max=2 measure.block_seconds=0.1"


def test_there_are_commands_of_each_kind() -> None:
    assert set(OF_MAKE) <= set(COMMANDS)
    assert any(line.startswith("python -m scaling.run ") for line in COMMANDS)
    assert any(line.startswith("python -m scaling.flops ") for line in COMMANDS)


@pytest.mark.parametrize("line", [pytest.param(line, marks=[pytest.mark.ranks, pytest.mark.long]) if line.endswith(MEASURING) else line for line in COMMANDS])
def test_a_command_of_the_readme_works(line: str, tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # else make talks of its parent
    environment = {**inherited, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    asked = OF_MAKE.get(line, line + SHORTER * line.endswith(MEASURING))
    ended = subprocess.run(asked, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout != ""


def test_every_file_that_the_readme_names_exists() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert "docs/metrics.md" in links
    assert [link for link in links if not (ROOT / link).exists()] == []
    rooms = re.findall(r"^([\w./]+/?) {2,}\S", "".join(re.findall(r"^```text\n(.*?)^```", README, re.DOTALL | re.MULTILINE)), re.MULTILINE)
    assert [room for room in rooms if not (ROOT / room).exists()] == []


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len(README.splitlines()) < 200
