"""Declared deviations: what a released library is known to do differently, with the evidence, as data.

A declaration is strict. The case still runs; while it fails the report says so, and once it passes the run fails
until the declaration is taken back.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib.resources
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SEVERITIES = ("hang", "wrong status", "lost data", "resource", "cosmetic")
_KEYS = {"implementation", "versions", "requirement", "cases", "severity", "reason", "evidence", "documented", "link"}


class BrokenDeviation(ValueError):
    """A declaration that cannot be used; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """One implementation departs from one requirement, in a range of versions."""

    implementation: str
    """The server library's name."""
    versions: SpecifierSet
    requirement: str
    cases: tuple[str, ...]
    """Patterns of case ids (``*`` stays within a segment)."""
    severity: str
    reason: str
    """What the implementation does instead, in one sentence."""
    evidence: str
    """What was seen, and how to see it again."""
    documented: str = ""
    """Where the implementation's own documentation says so; empty if it does not."""
    link: str = ""

    def covers(self, implementation: str, version: str | None, requirements: Iterable[str], case_id: str) -> bool:
        """Whether a case on an implementation is one that this declares."""
        return (
            implementation == self.implementation
            and version is not None
            and self.versions.contains(version, prereleases=True)
            and self.requirement in set(requirements)
            and any(_matches(case_id, pattern) for pattern in self.cases)
        )


def _matches(case_id: str, pattern: str) -> bool:
    ours, theirs = case_id.split("/"), pattern.split("/")
    # Brackets are part of ids, not character classes.
    return len(ours) == len(theirs) and all(
        fnmatch.fnmatchcase(one, other.replace("[", "[[]")) for one, other in zip(ours, theirs, strict=True)
    )


def read(text: str, origin: str) -> tuple[Deviation, ...]:
    """The declarations in a TOML text. Raises ``BrokenDeviation``."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BrokenDeviation(f"{origin}: not valid TOML: {error}") from error
    rows = data.get("deviation", [])
    if data.keys() - {"deviation"} or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BrokenDeviation(f"{origin}: only [[deviation]] tables are read")
    return tuple(_deviation(row, f"{origin}, deviation {at + 1}") for at, row in enumerate(rows))


def _deviation(row: dict[str, Any], where: str) -> Deviation:
    missing = sorted(_KEYS - {"documented", "link"} - row.keys())
    unknown = sorted(row.keys() - _KEYS)
    if missing or unknown:
        words = [f"lacks {', '.join(missing)}"] if missing else []
        words += [f"has unknown {', '.join(unknown)}"] if unknown else []
        raise BrokenDeviation(f"{where} {' and '.join(words)}")
    for key in sorted(row.keys() - {"cases"}):
        if not isinstance(row[key], str):
            raise BrokenDeviation(f"{where}: {key} is not a text")
    cases = row["cases"]
    if not isinstance(cases, list) or not cases or not all(isinstance(pattern, str) for pattern in cases):
        raise BrokenDeviation(f"{where}: cases is not a list of patterns such as 'file/function[*]'")
    if row["severity"] not in SEVERITIES:
        raise BrokenDeviation(f"{where}: severity {row['severity']!r} is not one of {', '.join(SEVERITIES)}")
    try:
        versions = SpecifierSet(row["versions"])
    except InvalidSpecifier as error:
        raise BrokenDeviation(f"{where}: versions {row['versions']!r} is not a version range") from error
    return Deviation(**{**row, "versions": versions, "cases": tuple(cases)})


@functools.cache
def declared() -> tuple[Deviation, ...]:
    """The declarations that ship with the suite."""
    folder = importlib.resources.files("pytest_grpc_conformance") / "deviations"
    if not folder.is_dir():  # Neither git nor a wheel keeps an empty folder: nothing is declared.
        return ()
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return tuple(row for file in files for row in read(file.read_text("utf-8"), file.name))


def find(
    deviations: Iterable[Deviation],
    implementation: str,
    version: str | None,
    requirements: Iterable[str],
    case_id: str,
) -> Deviation | None:
    """The first declaration that covers a case on an implementation."""
    rows = tuple(requirements)
    return next((d for d in deviations if d.covers(implementation, version, rows, case_id)), None)
