"""What a person sees while and after measuring: one refreshed line, the tables, the verdict.

On a pipe there are no control codes, tables are Markdown that nothing cuts at 80 columns, and progress is one line a round.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scaling.records import RunResult
from scaling.report import figures
from scaling.report.tables import TextTable, loss_table, notes, results_table, step_tables
from scaling.report.verdict import verdict

_PIPE_WIDTH = 10_000  # wider than any table: rich cuts cells to fit its width
_HEADING = "bold"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")  # escape sequences, then single control characters


class _Console(Console):
    """A console whose reader may go away (``| head``): what is measured is worth more than what is shown."""

    def on_broken_pipe(self) -> None:
        """Print nothing from here on, instead of ending the program as rich does."""
        self.quiet = True
        # The stream itself leads nowhere now, or the interpreter's last flush would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def open_console(stream: TextIO) -> Console:
    """Return a console for this stream; only a terminal gets colours, cursor movements and a width."""
    terminal = stream.isatty()  # said explicitly: rich would also believe FORCE_COLOR, and put codes into a pipe
    return _Console(
        file=stream,
        force_terminal=terminal,
        no_color=None if terminal else True,
        width=None if terminal else _PIPE_WIDTH,
        highlight=False,
        emoji=False,
        markup=False,
    )


def say(console: Console, lines: Iterable[str]) -> None:
    """Print lines that stay lines: addresses and commands among them survive copying."""
    for line in lines:
        _print_line(console, line)


def show(result: RunResult, console: Console, folder: Path) -> None:
    """Print the tables, the notes, the verdict and the run folder."""
    if result.points:
        _print_table(console, results_table(result))
    losses = loss_table(result)
    if losses is not None:
        _print_table(console, losses)
    for table in step_tables(result):
        _print_table(console, table)
    for note in notes(result):
        _print_text(console, f"note: {note}", "dim")
    _print_line(console, "")
    for index, line in enumerate(verdict(result)):
        _print_text(console, line, _HEADING if index == 0 else "")
    _print_line(console, f"Everything is in {folder}")


class Progress:
    """How far measuring has come; the driver calls it between blocks only.

    There is no refresh thread and no timer: while a block runs, this touches no core. A terminal gets one line that is
    redrawn, a pipe one plain line when a phase or round begins.

    Args:
        console: From ``open_console``.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._total = 0
        self._done = 0
        self._last: tuple[str, int] | None = None

    def start(self, total_blocks: int) -> None:
        """Begin; ``total_blocks`` is what is planned so far (more rounds may follow)."""
        self._total = total_blocks
        if self._console.is_terminal:
            # Redirecting sys.stdout would be a global effect; messages go through message() instead.
            self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
            self._live.start()

    def update(self, phase: str, round_number: int, rounds: int, rung: str, point: str, seconds_left: float | None) -> None:
        """Say which block begins.

        Args:
            phase: What is being done: ``warming up``, ``measuring``.
            round_number: From 1; 0 outside rounds, and then the block is not counted.
            rounds: Rounds planned so far.
            rung: The block's rung.
            point: The block's point; empty for ``solo``.
            seconds_left: Expected time to the end of measuring; ``None`` while unknown.
        """
        self._done += round_number > 0
        where = f"round {round_number}/{rounds}" if round_number else ""
        remaining = f"{figures.left(seconds_left)} left" if seconds_left is not None else ""
        if self._live is not None:
            block = f"block {self._done}/{max(self._total, self._done)}" if round_number else ""
            line = "  ".join(part for part in (phase, where, rung, point, block, remaining) if part)
            self._live.update(Text(line, style="cyan", no_wrap=True, overflow="ellipsis"), refresh=True)
        elif self._last != (phase, round_number):
            _print_line(self._console, ", ".join(part for part in (phase, where, remaining) if part))
            self._console.file.flush()  # a pipe is block buffered, and this line is for somebody who waits
        self._last = (phase, round_number)

    def message(self, text: str) -> None:
        """Print a line that stays, above the refreshed one."""
        _print_line(self._console, text)

    def close(self) -> None:
        """Remove the refreshed line; safe to call twice, and after an exception."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _print_line(console: Console, text: str, style: str = "") -> None:
    """Print one line that stays one: a command or an address must survive copying, so only the terminal itself may break it."""
    console.print(Text(_printable(console, text), style=style), soft_wrap=True)


def _print_text(console: Console, text: str, style: str = "") -> None:
    """Print prose; in a terminal it wraps between words."""
    console.print(Text(_printable(console, text), style=style), soft_wrap=not console.is_terminal)


def _print_table(console: Console, content: TextTable) -> None:
    _print_line(console, "")
    _print_line(console, content.title, _HEADING)
    if not console.is_terminal:
        for line in _markdown(content):
            _print_line(console, line)
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, header_style=_HEADING)
    for heading in content.headings:
        table.add_column("\n".join(heading.rsplit(" ", 1)), justify="right", vertical="bottom")
    for row in content.rows:
        table.add_row(*(Text(cell, style="red" if cell == "failed" else "") for cell in row))
    console.print(table)


def _markdown(content: TextTable) -> list[str]:
    """Return the table at its full width, in columns that line up and that a pull request shows as a table."""
    columns = list(zip(content.headings, *content.rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    lines = ["| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in (content.headings, *content.rows)]
    rule = "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|"
    return [lines[0], rule, *lines[1:]]


def _printable(console: Console, text: str) -> str:
    text = _CONTROL.sub("", text)  # a rank's error message may be coloured
    if console.is_terminal:
        return text
    text = text.replace(figures.MISSING, "-")
    return text.encode(console.encoding, "backslashreplace").decode(console.encoding)
