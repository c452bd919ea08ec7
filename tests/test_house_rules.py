"""The rules that keep this repository readable: sizes, names, docstrings, and nothing that belongs to one machine."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = sorted(path for room in ("scaling", "launch") for path in (ROOT / room).rglob("*.py"))
PYTHON = [*PACKAGES, *sorted(path for room in ("tests", "benchmarks", "examples") for path in (ROOT / room).rglob("*.py"))]
TEXT = [
    *PYTHON,
    *sorted(path for pattern in ("*.md", "docs/**/*.md", "conf/**/*.yaml", "Makefile", "pyproject.toml", "requirements.lock") for path in ROOT.glob(pattern)),
]
MOST_LINES, MOST_LINES_OF_A_FUNCTION = 300, 50
SAYS_NOTHING = {"utils", "util", "common", "base", "misc", "helpers", "helper"}


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    docstring = node.body[0] if ast.get_docstring(node) is not None else None
    whole = (node.end_lineno or node.lineno) - node.lineno + 1
    return whole if docstring is None else whole - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def test_the_rules_look_at_all_rooms() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in PYTHON} >= {"scaling", "launch", "tests", "benchmarks"}
    assert len(TEXT) > len(PYTHON) + 20


@pytest.mark.parametrize("path", PYTHON, ids=names(PYTHON))
def test_a_file_fits_into_300_lines_and_a_function_into_50(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    assert {node.name: code_lines(node) for node in functions(path) if code_lines(node) > MOST_LINES_OF_A_FUNCTION} == {}


@pytest.mark.parametrize("path", PACKAGES, ids=names(PACKAGES))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring is not None
    assert docstring.splitlines()[0].endswith((".", ",", ":", ";")) or len(docstring.splitlines()) > 1


def test_names_say_something() -> None:
    assert [str(path.relative_to(ROOT)) for path in PYTHON if {part.removesuffix(".py") for part in path.relative_to(ROOT).parts} & SAYS_NOTHING] == []


@pytest.mark.parametrize("path", TEXT, ids=names(TEXT))
def test_nothing_belongs_to_one_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.search(r"/(home|root|work|Users)/(?!me\b)[\w.-]+", text) is None  # "me" stands for anybody
    assert re.search(r"(--|extra[-_])index[-_]url", text) is None


def test_tests_are_no_package_and_their_names_are_unique() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
    files = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(files) == sorted(set(files))
