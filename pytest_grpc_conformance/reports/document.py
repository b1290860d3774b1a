"""The results of a run as plain data: the one source of every report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pytest_grpc_conformance.verdict import Verdict

SCHEMA = 1
"""Raised whenever a reader of an older document would misread a new one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a case did not conform, in the parts that a reader wants apart."""

    problem: str
    expected: str = ""
    observed: str = ""
    transcript: str = ""
    reproduce: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One case on one target."""

    case_id: str
    """``file/function[param]``: the same in every install mode and for every server library."""
    target: str
    protocol: str
    requirements: tuple[str, ...]
    summary: str
    """The case's docstring, first line: the requirement in one sentence."""
    verdict: Verdict
    seconds: float
    reason: str = ""
    """Why not applicable (with its code), what deviation is declared, or what broke."""
    failure: Failure | None = None

    @property
    def area(self) -> str:
        """The case's file."""
        return self.case_id.partition("/")[0]

    def to_data(self) -> dict[str, Any]:
        """Plain data that JSON (and a worker's channel) can carry."""
        data = dataclasses.asdict(self)
        data["verdict"] = self.verdict.value
        data["requirements"] = list(self.requirements)
        return data

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Result:
        """The inverse of ``to_data``."""
        failure = data["failure"]
        return cls(
            **{
                **data,
                "requirements": tuple(data["requirements"]),
                "verdict": Verdict(data["verdict"]),
                "failure": None if failure is None else Failure(**failure),
            }
        )


@dataclass(frozen=True, slots=True)
class Document:
    """A whole run."""

    suite_version: str
    targets: tuple[tuple[str, str], ...]
    """Each target's name with its version (or what is known of it), in report order."""
    results: tuple[Result, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema": SCHEMA,
            "suite_version": self.suite_version,
            "targets": [{"name": name, "version": version} for name, version in self.targets],
            "results": [result.to_data() for result in self.results],
            "notes": list(self.notes),
        }

    def count(self, verdict: Verdict) -> int:
        """How many results have that verdict."""
        return sum(result.verdict is verdict for result in self.results)


def ordered(results: Iterable[Result]) -> tuple[Result, ...]:
    """Results in an order that does not depend on workers or on random test order."""
    return tuple(sorted(results, key=lambda r: (r.target, r.protocol, r.case_id)))
