"""From collected functions to conformance cases: which targets a case gets, its id, its rows, its needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_grpc_conformance import registry
from pytest_grpc_conformance.options import Options
from pytest_grpc_conformance.shared import CHOICE_FIXTURE, LIBRARY_FIXTURE, LIBRARY_TARGET_FIXTURE, WIRE

if TYPE_CHECKING:
    from pytest_grpc_conformance.targets.base import Capability

MARKER = "requirement"
COMMON_PREFIX = "GRPC-"
"""Rows that go with every protocol."""


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """One target for a case: a server library's name (or ``command``, ``address``) and a protocol's name."""

    target: str
    protocol: str

    @property
    def id(self) -> str:
        return f"{self.target}-{self.protocol}"


@dataclass(frozen=True, slots=True)
class Case:
    """What the suite knows of one collected item."""

    case_id: str
    choice: TargetChoice
    requirements: tuple[str, ...]
    """The rows for the protocol under test."""
    summary: str
    needs: tuple[Capability, ...]


def choices(options: Options) -> tuple[TargetChoice, ...]:
    """Every target of a run, in report order."""
    if options.command is not None:
        targets: tuple[str, ...] = ("command",)
    elif options.address is not None:
        targets = ("address",)
    else:
        targets = options.servers
    return tuple(TargetChoice(target, protocol) for target in targets for protocol in options.protocols)


def library_choices(options: Options) -> tuple[TargetChoice, ...]:
    """Every server library of a run, for cases about the library itself."""
    if not options.wire or not options.in_process:
        return ()
    return tuple(TargetChoice(server, WIRE) for server in options.servers)


def rows_for(requirement_ids: tuple[str, ...], protocol: str) -> tuple[str, ...]:
    """The rows among those of a case that apply to a protocol."""
    own = () if protocol == WIRE else (registry.protocol(protocol).requirement_prefix,)
    prefixes = (*own, COMMON_PREFIX)
    return tuple(row for row in requirement_ids if row.startswith(prefixes))


def parametrize(metafunc: pytest.Metafunc, options: Options) -> None:
    """Give a function that asks for a target (or a server) one item per target (or server library)."""
    if CHOICE_FIXTURE in metafunc.fixturenames:
        marked = _marked_ids(metafunc.definition)
        offered = library_choices if LIBRARY_TARGET_FIXTURE in metafunc.fixturenames else choices
        served = [choice for choice in offered(options) if not marked or rows_for(marked, choice.protocol)]
        # With nothing to run on there is still an item, or pytest would report a skip; the hook leaves it out.
        given: list[TargetChoice | None] = [*served] or [None]
        ids = [choice.id for choice in served] or ["no-protocol"]
        metafunc.parametrize(CHOICE_FIXTURE, given, indirect=True, ids=ids)
    elif LIBRARY_FIXTURE in metafunc.fixturenames:
        metafunc.parametrize(LIBRARY_FIXTURE, options.servers, indirect=True, ids=list(options.servers))


def _marked_ids(item: pytest.Item | Any) -> tuple[str, ...]:
    ids = tuple(row for mark in item.iter_markers(MARKER) for row in mark.args)
    _check_ids(item, ids)
    return ids


def _check_ids(item: Any, ids: tuple[str, ...]) -> None:
    from pytest_grpc_conformance.requirements import UnknownRequirement, catalogue

    for row in ids:
        try:
            catalogue().get(row)
        except UnknownRequirement as error:
            raise pytest.Collector.CollectError(f"{item.name}: {error}") from error


def case_of(item: pytest.Item) -> Case | None:
    """The case that an item is, or ``None`` for any other test."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return None
    choice = callspec.params.get(CHOICE_FIXTURE)
    if not isinstance(choice, TargetChoice) or item.get_closest_marker(MARKER) is None:
        return None
    needs = tuple(need for mark in item.iter_markers(MARKER) for need in mark.kwargs.get("needs", ()))
    return Case(
        _case_id(item, callspec.id, choice),
        choice,
        rows_for(_marked_ids(item), choice.protocol),
        _summary(item),
        needs,
    )


def _case_id(item: pytest.Item, callspec_id: str, choice: TargetChoice) -> str:
    """``file/function[protocol-param]``. The server library is no part of it: it is the column of a report."""
    stem = Path(str(item.path)).stem.removeprefix("test_")
    function = getattr(item, "originalname", item.name).removeprefix("test_")
    rest = callspec_id.removeprefix(f"{choice.target}-")
    return f"{stem}/{function}[{rest}]"


def _summary(item: pytest.Item) -> str:
    documentation = getattr(getattr(item, "obj", None), "__doc__", None) or ""
    return " ".join(documentation.strip().partition("\n\n")[0].split())
