"""``report.html``: the whole report in one file that opens anywhere, without a network and without scripts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from string import Template

from scaling.records import RunResult
from scaling.report.headline import headline
from scaling.report.plot import IMAGE
from scaling.report.store import document
from scaling.report.tables import TextTable, loss_table, notes, results_table, step_tables
from scaling.report.verdict import verdict

PAGE = "report.html"

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { font-size: 1.15rem; font-weight: 600; border-left: 4px solid #0072b2; padding-left: .8rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
td.failed { color: #b3261e; font-weight: 600; }
img { max-width: 100%; height: auto; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: .85rem; }
footer { margin-top: 2rem; color: #666; font-size: .85rem; }
</style>
</head>
<body>
<h1>$title</h1>
<p>$headline</p>
$verdict
$tables
$image
$notes
<h2>environment</h2>
<pre>$environment</pre>
<h2>configuration</h2>
<pre>$config</pre>
<footer>Run $run_id, $created<br>$command</footer>
</body>
</html>
""")


def write_page(result: RunResult, folder: Path) -> Path:
    """Write ``report.html`` into the run folder, with ``scaling.png`` of that folder inside it where there is one.

    Args:
        result: The finished run; everything taken from it is escaped.
        folder: The run folder.

    Returns:
        The page's path.
    """
    content = document(result)
    first = result.points[0] if result.points else None
    path = folder / PAGE
    text = _PAGE.substitute(
        title=escape(f"Scaling of {first.model} with {first.strategy}" if first else "Scaling run without a point"),
        headline=escape(headline(result)),
        verdict=_verdict(verdict(result)),
        tables="\n".join(_table(table) for table in (results_table(result), loss_table(result), *step_tables(result)) if table is not None and table.rows),
        image=_image(folder / IMAGE),
        notes=_notes(notes(result)),
        environment=escape(json.dumps(content["environment"], indent=2, ensure_ascii=False)),
        config=escape(json.dumps(content["config"], indent=2, ensure_ascii=False)),
        run_id=escape(result.run_id),
        created=escape(result.created),
        command=escape(" ".join(result.command)),
    )
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def _verdict(lines: Iterable[str]) -> str:
    first, *others = [escape(line) for line in lines] or ["No verdict."]
    return "\n".join([f'<p class="verdict">{first}</p>', *(f"<p>{line}</p>" for line in others)])


def _table(content: TextTable) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in content.headings)
    rows = "\n".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in content.rows)
    return f'<h2>{escape(content.title)}</h2>\n<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table></div>'


def _cell(text: str) -> str:
    return f'<td class="failed">{text}</td>' if text == "failed" else f"<td>{escape(text)}</td>"


def _image(path: Path) -> str:
    if not path.is_file():
        return ""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<p><img alt="Delivered rate against the sum of the single cards, and the loss shares" src="data:image/png;base64,{data}"></p>'


def _notes(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>notes</h2>\n<ul>{items}</ul>" if items else ""
