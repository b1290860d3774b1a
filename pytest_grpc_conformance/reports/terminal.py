"""The terminal view of a document: a matrix of areas by targets, then what needs a reader's attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pytest_grpc_conformance.reports.document import Document, Result
from pytest_grpc_conformance.verdict import Verdict

SHORT = {
    Verdict.PASSED: "ok",
    Verdict.FAILED: "FAILED",
    Verdict.DEVIATES: "deviates",
    Verdict.UNEXPECTED_PASS: "UNEXPECTED PASS",
    Verdict.NOT_APPLICABLE: "n/a",
    Verdict.BROKEN: "BROKEN",
}
MOST_NAMED = 10
"""A run with more failures than this shows the first ones; the JSON report has all."""


def render(document: Document) -> list[str]:
    """The lines of the summary."""
    return [*_matrix(document), *_attention(document), _closing(document)]


def _columns(document: Document) -> list[tuple[str, str]]:
    seen = dict.fromkeys((result.target, result.protocol) for result in document.results)
    order = {name: number for number, (name, _) in enumerate(document.targets)}
    return sorted(seen, key=lambda column: (order.get(column[0], len(order)), column))


def _cell(results: Iterable[Result]) -> str:
    counts = Counter(result.verdict for result in results)
    return ", ".join(f"{counts[verdict]} {word}" for verdict, word in SHORT.items() if counts[verdict])


def _matrix(document: Document) -> list[str]:
    columns = _columns(document)
    versions = dict(document.targets)
    areas = sorted({result.area for result in document.results})
    heads = [
        [f"{target} {versions.get(target, '')}".strip() for target, _ in columns],
        [p for _, p in columns],
    ]
    # One pass over the results; a scan per cell would be quadratic for a large run.
    cells: dict[tuple[str, tuple[str, str]], list[Result]] = {}
    for result in document.results:
        cells.setdefault((result.area, (result.target, result.protocol)), []).append(result)
    rows = [["", *heads[0]], ["area", *heads[1]]]
    rows += [[area, *(_cell(cells.get((area, column), ())) or "-" for column in columns)] for area in areas]
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _attention(document: Document) -> list[str]:
    lines: list[str] = []
    for verdict in (Verdict.FAILED, Verdict.BROKEN, Verdict.UNEXPECTED_PASS, Verdict.DEVIATES):
        found = [result for result in document.results if result.verdict is verdict]
        lines += [_line(result) for result in found[:MOST_NAMED]]
        if len(found) > MOST_NAMED:
            lines.append(f"  ... and {len(found) - MOST_NAMED} more {verdict.value}")
    reasons = Counter(
        (result.target, result.reason)
        for result in document.results
        if result.verdict is Verdict.NOT_APPLICABLE
    )
    lines += [
        f"n/a  {target}: {reason} ({count} cases)" for (target, reason), count in sorted(reasons.items())
    ]
    return [*lines, *document.notes]


def _line(result: Result) -> str:
    rows = ", ".join(result.requirements)
    why = result.failure.problem if result.failure and not result.reason else result.reason
    first = why.splitlines()[0] if why else ""
    return f"{SHORT[result.verdict]}  {result.target}/{result.protocol} {result.case_id} ({rows}): {first}"


def _closing(document: Document) -> str:
    counts = ", ".join(
        f"{document.count(verdict)} {verdict.value}" for verdict in Verdict if document.count(verdict)
    )
    return f"{len(document.results)} results: {counts}" if counts else "no conformance case ran"
