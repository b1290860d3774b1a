"""Which cases check which rows: a join of the catalogue with cases, and its views as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from pytest_grpc_conformance.requirements import (
    LEVELS,
    Catalogue,
    Group,
    Requirement,
    UnknownRequirement,
)


@dataclass(frozen=True)
class CaseRef:
    """A case as the join needs it: its id, the ids of the rows that it checks, and its one-line summary."""

    case_id: str
    requirement_ids: tuple[str, ...]
    summary: str


@dataclass(frozen=True)
class RowCoverage:
    """A row, its group and the cases that check it; no case means that the row is unchecked."""

    group: Group
    row: Requirement
    cases: tuple[CaseRef, ...]

    @property
    def case_ids(self) -> tuple[str, ...]:
        """The ids of the cases, in the order in which the cases were given."""
        return tuple(case.case_id for case in self.cases)


def cover(catalogue: Catalogue, cases: Iterable[CaseRef]) -> tuple[RowCoverage, ...]:
    """Every row of the catalogue, in its order, with the cases that name it; unchecked rows are kept.

    Raises ``UnknownRequirement``, naming the case, for an id that no row has.
    """
    checking: dict[str, dict[str, CaseRef]] = {row.id: {} for row in catalogue.rows}
    for case in cases:
        for row_id in case.requirement_ids:
            checking[_known(catalogue, case, row_id)].setdefault(case.case_id, case)
    return tuple(RowCoverage(catalogue.group_of(row), row, tuple(checking[row.id].values())) for row in catalogue.rows)


def render_text(coverage: Sequence[RowCoverage], *, unchecked_only: bool = False, width: int = 72) -> str:
    """A table for a terminal: rows under their group's title, the counts of all rows in the last line.

    ``width`` is where a statement is cut. ``unchecked_only`` leaves checked rows out of the table,
    but not out of the counts.
    """
    shown = [entry for entry in coverage if not (unchecked_only and entry.cases)]
    id_width = max((len(entry.row.id) for entry in shown), default=0)
    lines = []
    for group, entries in _by_group(shown).items():
        lines.append(f"{group.id}  {group.title}")
        lines.extend(_line(entry, id_width, width) for entry in entries)
        lines.append("")
    return "\n".join([*lines, _closing_line(coverage)])


def render_json(coverage: Sequence[RowCoverage]) -> str:
    """The same join as a JSON document: groups with their rows and cases, and the counts."""
    groups = [
        {**asdict(group), "rows": [_row_object(entry) for entry in entries]}
        for group, entries in _by_group(coverage).items()
    ]
    unchecked = _unchecked_by_level(coverage)
    checked = len(coverage) - sum(unchecked.values())
    counts = {"rows": len(coverage), "checked": checked, "unchecked": unchecked}
    return json.dumps({"schema": 1, "counts": counts, "groups": groups}, indent=2)


def _known(catalogue: Catalogue, case: CaseRef, row_id: str) -> str:
    try:
        return catalogue.get(row_id).id
    except UnknownRequirement as error:
        raise UnknownRequirement(f"case {case.case_id}: {error}") from error


def _by_group(coverage: Iterable[RowCoverage]) -> dict[Group, list[RowCoverage]]:
    groups: dict[Group, list[RowCoverage]] = {}
    for entry in coverage:
        groups.setdefault(entry.group, []).append(entry)
    return groups


def _line(entry: RowCoverage, id_width: int, width: int) -> str:
    row = entry.row
    statement = textwrap.shorten(row.statement, width, placeholder="...", break_on_hyphens=False)
    cases = ", ".join(entry.case_ids) or "unchecked"
    return f"  {row.id:{id_width}}  {row.level:6}  {row.oracle:9}  {statement:{width}}  {cases}"


def _closing_line(coverage: Sequence[RowCoverage]) -> str:
    unchecked = _unchecked_by_level(coverage)
    total = sum(unchecked.values())
    by_level = ", ".join(f"{number} {level}" for level, number in unchecked.items() if number)
    closing = f"{len(coverage)} rows: {len(coverage) - total} checked, {total} unchecked"
    return f"{closing} ({by_level})" if by_level else closing


def _unchecked_by_level(coverage: Sequence[RowCoverage]) -> dict[str, int]:
    levels = [entry.row.level for entry in coverage if not entry.cases]
    return {level: levels.count(level) for level in LEVELS}


def _row_object(entry: RowCoverage) -> dict[str, object]:
    cases = [{"id": case.case_id, "summary": case.summary} for case in entry.cases]
    return {**asdict(entry.row), "cases": cases}
