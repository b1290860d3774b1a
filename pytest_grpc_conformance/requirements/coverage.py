"""Which cases check which rows: a join of the catalogue with cases, and its views as text and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from pytest_grpc_conformance.requirements import (
    LEVELS,
    Catalogue,
    Group,
    Requirement,
    UnknownRequirement,
)

State = Literal["checked", "unchecked", "unobserved"]
"""What is known of a row: a case checks it, none does yet, or none can and the row says why."""


@dataclass(frozen=True)
class CaseRef:
    """A case as the join needs it: its id, the ids of the rows that it checks, and its one-line summary."""

    case_id: str
    requirement_ids: tuple[str, ...]
    summary: str


@dataclass(frozen=True)
class RowCoverage:
    """A row, its group and the cases that check it; no case means that the row is unchecked, or is unobserved."""

    group: Group
    row: Requirement
    cases: tuple[CaseRef, ...]

    @property
    def case_ids(self) -> tuple[str, ...]:
        """The ids of the cases, in the order in which the cases were given."""
        return tuple(case.case_id for case in self.cases)

    @property
    def state(self) -> State:
        """Where the row is counted."""
        if self.row.unobserved is not None:
            return "unobserved"
        return "checked" if self.cases else "unchecked"


def cover(catalogue: Catalogue, cases: Iterable[CaseRef]) -> tuple[RowCoverage, ...]:
    """Every row of the catalogue, in its order, with the cases that name it; unchecked and unobserved rows are kept.

    Raises ``UnknownRequirement``, naming the case, for an id that no row has, or whose row is unobserved.
    """
    checking: dict[str, dict[str, CaseRef]] = {row.id: {} for row in catalogue.rows}
    for case in cases:
        for row_id in case.requirement_ids:
            checking[_known(catalogue, case, row_id)].setdefault(case.case_id, case)
    return tuple(RowCoverage(catalogue.group_of(row), row, tuple(checking[row.id].values())) for row in catalogue.rows)


def render_text(coverage: Sequence[RowCoverage], *, only: State | None = None, width: int = 72) -> str:
    """A table for a terminal: rows under their group's title, the counts of all rows in the last line.

    ``width`` is where a statement is cut. ``only`` leaves the rows of another state out of the table,
    but not out of the counts.
    """
    shown = [entry for entry in coverage if only in (None, entry.state)]
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
    counts = {
        "rows": len(coverage),
        "checked": _number(coverage, "checked"),
        "unchecked": _unchecked_by_level(coverage),
        "unobserved": _number(coverage, "unobserved"),
    }
    return json.dumps({"schema": 1, "counts": counts, "groups": groups}, indent=2)


def _known(catalogue: Catalogue, case: CaseRef, row_id: str) -> str:
    try:
        return catalogue.get(row_id).id
    except UnknownRequirement as error:
        raise type(error)(f"case {case.case_id}: {error}") from error


def _by_group(coverage: Iterable[RowCoverage]) -> dict[Group, list[RowCoverage]]:
    groups: dict[Group, list[RowCoverage]] = {}
    for entry in coverage:
        groups.setdefault(entry.group, []).append(entry)
    return groups


def _line(entry: RowCoverage, id_width: int, width: int) -> str:
    row = entry.row
    statement = textwrap.shorten(row.statement, width, placeholder="...", break_on_hyphens=False)
    checked_by = {
        "checked": ", ".join(entry.case_ids),
        "unchecked": "unchecked",
        "unobserved": f"unobserved: {row.unobserved}",
    }
    return f"  {row.id:{id_width}}  {row.level:6}  {row.oracle:9}  {statement:{width}}  {checked_by[entry.state]}"


def _closing_line(coverage: Sequence[RowCoverage]) -> str:
    by_level = ", ".join(f"{number} {level}" for level, number in _unchecked_by_level(coverage).items() if number)
    checked, unchecked, unobserved = (_number(coverage, state) for state in get_args(State))
    closing = f"{len(coverage)} rows: {checked} checked, {unchecked} unchecked"
    if by_level:
        closing += f" ({by_level})"
    return f"{closing}, {unobserved} unobserved" if unobserved else closing


def _number(coverage: Sequence[RowCoverage], state: State) -> int:
    return sum(entry.state == state for entry in coverage)


def _unchecked_by_level(coverage: Sequence[RowCoverage]) -> dict[str, int]:
    levels = [entry.row.level for entry in coverage if entry.state == "unchecked"]
    return {level: levels.count(level) for level in LEVELS}


def _row_object(entry: RowCoverage) -> dict[str, object]:
    cases = [{"id": case.case_id, "summary": case.summary} for case in entry.cases]
    return {**asdict(entry.row), "cases": cases}
