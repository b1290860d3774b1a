"""The terminal view of a document: a matrix of areas by targets, then what needs a reader's attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pytest_grpc_conformance.reports.document import Document, Result
from pytest_grpc_conformance.transcript import harmless
from pytest_grpc_conformance.verdict import Verdict

SHORT = {
    Verdict.PASSED: "ok",
    Verdict.FAILED: "FAILED",
    Verdict.DEVIATES: "deviates",
    Verdict.UNEXPECTED_PASS: "UNEXPECTED PASS",
    Verdict.NOT_APPLICABLE: "n/a",
    Verdict.BROKEN: "BROKEN",
}
GAP = "  "
WIDTH = 160
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
    if not document.results:
        return []
    columns = _columns(document)
    areas = sorted({result.area for result in document.results})
    # One pass over the results; a scan per cell would be quadratic for a large run.
    cells: dict[tuple[str, tuple[str, str]], list[Result]] = {}
    for result in document.results:
        cells.setdefault((result.area, (result.target, result.protocol)), []).append(result)
    rows = [["area", *(protocol for _, protocol in columns)]]
    rows += [[area, *(_cell(cells.get((area, column), ())) or "-" for column in columns)] for area in areas]
    return _table(_spans(document, columns), rows)


def _spans(document: Document, columns: Sequence[tuple[str, str]]) -> list[tuple[str, int]]:
    """Each target with its version, and how many columns are its own."""
    versions = dict(document.targets)
    widths = Counter(target for target, _ in columns)
    return [(f"{target} {versions.get(target, '')}".strip(), width) for target, width in widths.items()]


def _table(spans: Sequence[tuple[str, int]], rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows under a line with a head for each span of columns; the first column has none."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    head, first = [" " * widths[0]], 1
    for text, count in spans:
        last = first + count - 1
        spare = sum(widths[first : last + 1]) + len(GAP) * (count - 1)
        widths[last] += max(0, len(text) - spare)
        head.append(text.ljust(max(spare, len(text))))
        first = last + 1
    body = [GAP.join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    return [line.rstrip() for line in [GAP.join(head), *body]]


def _attention(document: Document) -> list[str]:
    lines: list[str] = []
    for verdict in (Verdict.FAILED, Verdict.BROKEN, Verdict.UNEXPECTED_PASS, Verdict.DEVIATES):
        found = _grouped(result for result in document.results if result.verdict is verdict)
        lines += [_line(results) for results in found[:MOST_NAMED]]
        if len(found) > MOST_NAMED:
            lines.append(f"  ... and {sum(map(len, found[MOST_NAMED:]))} more {verdict.value}")
    reasons = Counter(
        (result.target, result.reason) for result in document.results if result.verdict is Verdict.NOT_APPLICABLE
    )
    lines += [f"n/a  {target}: {reason} ({_cases(count)})" for (target, reason), count in sorted(reasons.items())]
    return [harmless(line, WIDTH) for line in [*lines, *document.notes]]


def _grouped(results: Iterable[Result]) -> list[list[Result]]:
    """Each failure of the target by itself; what broke for the same reason on the same target together."""
    groups: dict[object, list[Result]] = {}
    for at, result in enumerate(results):
        alike = result.verdict is Verdict.BROKEN and result.reason
        groups.setdefault((result.target, result.protocol, result.reason) if alike else at, []).append(result)
    return list(groups.values())


def _line(results: Sequence[Result]) -> str:
    first = results[0]
    rows = ", ".join(first.requirements)
    which = f"{first.case_id} ({rows})" if len(results) == 1 else f"{_cases(len(results))} from {first.case_id} on"
    why = first.failure.problem if first.failure and not first.reason else first.reason
    return f"{SHORT[first.verdict]}  {first.target}/{first.protocol} {which}: {why.splitlines()[0] if why else ''}"


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count} cases"


def _closing(document: Document) -> str:
    counts = ", ".join(f"{document.count(verdict)} {verdict.value}" for verdict in Verdict if document.count(verdict))
    number = len(document.results)
    return f"{number} {'result' if number == 1 else 'results'}: {counts}" if counts else "no conformance case ran"
