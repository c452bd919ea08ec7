"""The parts of ``docs/accuracy.md`` that scripts write, each between two marks."""

from __future__ import annotations

from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"


def written(start: str, end: str) -> str:
    """Return what stands between two marks."""
    return DOCUMENT.read_text(encoding="utf-8").partition(start + "\n")[2].partition("\n" + end)[0]


def rewrite(start: str, end: str, section: str) -> None:
    """Put a section between two marks."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(start)
    _, _, after = rest.partition(end)
    DOCUMENT.write_text(f"{before}{start}\n{section}\n{end}{after}", encoding="utf-8")
