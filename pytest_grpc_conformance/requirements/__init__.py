"""What the suite claims to check, one row per observable fact: this folder's TOML files in, a catalogue out.

Neither grpc nor protobuf nor pytest is imported, so that rows can be read, joined and rendered as plain data.
"""

from __future__ import annotations

import difflib
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

ORACLES = ("spec", "parity", "reference")
"""Who says so: the protocol's own documents, what grpc.aio does, or what one reference adapter does."""

LEVELS = ("MUST", "SHOULD", "MAY", "REF")
"""How a miss is taken. MAY is a freedom that a case has to tolerate; REF goes with the oracle "reference"."""

LONGEST_REASON = 200
"""Characters of a row's ``unobserved``, which a listing shows uncut."""

_TEXTS = ("id", "oracle", "level", "statement", "source", "observe")
_ID = re.compile(r"[A-Z][A-Z0-9]*-[A-Z][A-Z0-9]*-[0-9]+")


class BrokenCatalogue(ValueError):
    """A catalogue file breaks the format; the one-line message has the file, the row and what to do."""


class UnknownRequirement(LookupError):
    """No row, group or protocol has the name; the one-line message has the nearest ones."""


class UnobservedRequirement(UnknownRequirement):
    """The row says that no test can observe it, so that no case may name it; the one-line message has its reason."""


@dataclass(frozen=True)
class Group:
    """The chapter that a row belongs to; ``protocol`` is the stem of the file that holds it."""

    id: str
    title: str
    protocol: str


@dataclass(frozen=True)
class Requirement:
    """One observable fact that a server has to show, who says so, and how a test can see it."""

    id: str
    oracle: str
    level: str
    statement: str
    source: str
    derived: bool
    observe: str
    unobserved: str | None = None
    """Why no test can see it, in one sentence, for a row that no case may name."""

    @property
    def group_id(self) -> str:
        """The id of the row's group: ``OE-GEN`` for ``OE-GEN-001``."""
        return self.id.rpartition("-")[0]


@dataclass(frozen=True)
class Catalogue:
    """All rows, in the order of their files (by file name) and within a file as written."""

    groups: tuple[Group, ...]
    rows: tuple[Requirement, ...]

    def get(self, id: str) -> Requirement:
        """The row with that id, for whoever names it as checked.

        Raises ``UnknownRequirement`` with the nearest ids, or ``UnobservedRequirement`` with the row's reason.
        """
        row = self._by_id.get(id)
        if row is None:
            raise UnknownRequirement(_no_such("requirement", id, self._by_id))
        if row.unobserved is not None:
            raise UnobservedRequirement(f"requirement {id!r} is unobserved, no case can check it: {row.unobserved}")
        return row

    def group_of(self, row: Requirement) -> Group:
        """The group that a row of this catalogue belongs to."""
        return self._groups_by_id[row.group_id]

    def of_group(self, prefix: str) -> tuple[Requirement, ...]:
        """The rows of one group (``"OE-GEN"``), or of all groups that share a first word (``"OE"``).

        Raises ``UnknownRequirement`` if no row's id begins with the prefix and a hyphen.
        """
        found = tuple(row for row in self.rows if row.id.startswith(f"{prefix}-"))
        if not found:
            raise UnknownRequirement(_no_such("requirement group", prefix, self._groups_by_id))
        return found

    def for_protocol(self, name: str) -> tuple[Requirement, ...]:
        """The rows of one protocol's file: ``"openengine"``, ``"smg"``, or ``"grpc"`` for every gRPC server.

        Raises ``UnknownRequirement`` if no file has that name.
        """
        protocols = dict.fromkeys(group.protocol for group in self.groups)
        if name not in protocols:
            raise UnknownRequirement(_no_such("requirements for protocol", name, protocols))
        return tuple(row for row in self.rows if self.group_of(row).protocol == name)

    @functools.cached_property
    def _by_id(self) -> dict[str, Requirement]:
        return {row.id: row for row in self.rows}

    @functools.cached_property
    def _groups_by_id(self) -> dict[str, Group]:
        return {group.id: group for group in self.groups}


@functools.cache
def catalogue() -> Catalogue:
    """The catalogue that ships with the package, read once. Raises ``BrokenCatalogue``."""
    return load(resources.files("pytest_grpc_conformance.requirements"))


def load(source: Traversable | Iterable[Traversable]) -> Catalogue:
    """Read a folder of ``*.toml`` files, or the given files, into one catalogue.

    Raises ``BrokenCatalogue`` at the first thing that is wrong, so that no row is dropped in silence.
    """
    groups: list[Group] = []
    rows: list[Requirement] = []
    home: dict[str, str] = {}
    for file in _files(source):
        document = _document(file)
        own = list(_groups(file, document))
        found = list(_rows(file, document, [group.id for group in own]))
        for entry_id in [*(group.id for group in own), *(row.id for row in found)]:
            if entry_id in home:
                raise _broken(file, entry_id, f"already used in {home[entry_id]}", "give it another id")
            home[entry_id] = file.name
        groups += own
        rows += found
    return Catalogue(tuple(groups), tuple(rows))


def _files(source: Traversable | Iterable[Traversable]) -> list[Traversable]:
    given = source if isinstance(source, Iterable) else source.iterdir()
    files = sorted((file for file in given if file.name.endswith(".toml")), key=lambda file: file.name)
    if not files:
        raise BrokenCatalogue(f"{source}: no .toml file there; name the folder that holds the rows")
    return files


def _document(file: Traversable) -> dict[str, Any]:
    try:
        document: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BrokenCatalogue(f"{file.name}: not valid TOML ({error}); correct it there") from error
    for table in document:
        if table not in ("group", "requirement"):
            raise _broken(file, table, "unknown table", "only [[group]] and [[requirement]] are read")
    return document


def _groups(file: Traversable, document: dict[str, Any]) -> Iterator[Group]:
    protocol = file.name.removesuffix(".toml")
    for where, table in _tables(file, document, "group"):
        _check_keys(file, where, table, ("id", "title"))
        yield Group(table["id"], table["title"], protocol)


def _rows(file: Traversable, document: dict[str, Any], group_ids: list[str]) -> Iterator[Requirement]:
    for where, table in _tables(file, document, "requirement"):
        _check_keys(file, where, table, _TEXTS, ("derived",), ("unobserved",))
        row = Requirement(**{"derived": False, **table})
        _check_values(file, row)
        if row.group_id not in group_ids:
            known = ", ".join(group_ids) or "none"
            raise _broken(file, row.id, f"not in the file's groups ({known})", "correct it or add a [[group]]")
        yield row


def _tables(file: Traversable, document: dict[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables of one kind, each with what to call it in a message: its id, or its place if it has none."""
    tables = document.get(kind, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise _broken(file, kind, "not an array of tables", f"write [[{kind}]]")
    for place, table in enumerate(tables, start=1):
        yield str(table.get("id", f"{kind} number {place}")), table


def _check_keys(
    file: Traversable,
    where: str,
    table: dict[str, Any],
    texts: tuple[str, ...],
    flags: tuple[str, ...] = (),
    optional_texts: tuple[str, ...] = (),
) -> None:
    for key in texts:
        if key not in table:
            raise _broken(file, where, f"key {key!r} is missing", "add it")
    known = texts + flags + optional_texts
    for key, value in table.items():
        if key not in known:
            raise _broken(file, where, f"unknown key {key!r}", f"the keys are {', '.join(known)}")
        if key in flags and not isinstance(value, bool):
            raise _broken(file, where, f"key {key!r} is not a boolean", "write true, or leave it out")
        if key not in flags and (not isinstance(value, str) or not value.strip()):
            raise _broken(file, where, f"key {key!r} is not a text, or is empty", "write a non-empty string")


def _check_values(file: Traversable, row: Requirement) -> None:
    if not _ID.fullmatch(row.id):
        raise _broken(file, row.id, "the id has not the form OE-GEN-001", "correct it")
    if row.oracle not in ORACLES:
        raise _broken(file, row.id, f"unknown oracle {row.oracle!r}", f"use one of {', '.join(ORACLES)}")
    if row.level not in LEVELS:
        raise _broken(file, row.id, f"unknown level {row.level!r}", f"use one of {', '.join(LEVELS)}")
    if (row.level == "REF") != (row.oracle == "reference"):
        problem = f"level {row.level!r} with oracle {row.oracle!r}"
        raise _broken(file, row.id, problem, "level REF and oracle reference go together")
    if row.unobserved is not None:
        _check_reason(file, row.id, row.unobserved)


def _check_reason(file: Traversable, where: str, reason: str) -> None:
    if len(reason) > LONGEST_REASON:
        problem = f"key 'unobserved' has {len(reason)} characters"
        raise _broken(file, where, problem, f"say why in one sentence of at most {LONGEST_REASON}")
    if len(reason.splitlines()) > 1:
        raise _broken(file, where, "key 'unobserved' has more than one line", "say why in one sentence")


def _broken(file: Traversable, where: str, problem: str, remedy: str) -> BrokenCatalogue:
    return BrokenCatalogue(f"{file.name}: {where}: {problem}; {remedy}")


def _no_such(kind: str, name: str, names: Iterable[str]) -> str:
    by_lower = {known.lower(): known for known in names}
    near = [by_lower[found] for found in difflib.get_close_matches(name.lower(), by_lower, n=3)]
    hint = f"nearest: {', '.join(near)}" if near else "nothing is near it"
    return f"no {kind} {name!r}; {hint}"
