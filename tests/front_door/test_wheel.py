"""The wheel is the product: it holds the Hydra tree, nothing that is only for developers, and its front doors work from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)], cwd=ROOT, check=True, capture_output=True)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files where ``pip install --no-deps --target`` puts them; unpacking is all that pip does for a pure wheel."""
    place = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def run(installed: Path, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run([sys.executable, "-m", *arguments], cwd=place, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_wheel_holds_the_packages_and_the_whole_hydra_tree_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {Path(name) for name in archive.namelist()}
    assert {path.parts[0].partition("-")[0] for path in held} == {"scaling", "launch", "scaling_profiler"}
    shipped = {path.relative_to("scaling/conf") for path in held if path.parts[:2] == ("scaling", "conf")}
    assert shipped == {path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml")}
    for file in ("scaling/report/result.schema.json", "scaling/py.typed", "launch/py.typed"):
        assert Path(file) in held
    code = {path for path in held if path.suffix == ".py"}
    assert code == {path.relative_to(ROOT) for room in ("scaling", "launch") for path in (ROOT / room).rglob("*.py")}


def test_it_runs_from_another_folder_with_its_own_files(installed: Path, tmp_path: Path) -> None:
    where = "import scaling, scaling.paths; print(scaling.__file__); print(scaling.paths.conf())"
    shown = subprocess.run(
        [sys.executable, "-c", where], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == [str(installed / "scaling" / "__init__.py"), str(installed / "scaling" / "conf")]
    for module in ("scaling.run", "scaling.flops"):
        helped = run(installed, tmp_path, module, "--help")
        assert (helped.returncode, helped.stderr) == (0, "")
        assert "gpt" in helped.stdout
    refused = run(installed, tmp_path, "scaling.run", "model=gpd")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("refused: model=gpd: unknown model; allowed: bert_base, gpt, ")
    assert list(tmp_path.iterdir()) == []
