"""What can be chosen by name: server libraries and protocols, from the entry points of installed distributions."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pytest_grpc_conformance.protocols.base import WireProtocol
    from pytest_grpc_conformance.servers.base import ServerLibrary

T = TypeVar("T")
SERVERS = "pytest_grpc_conformance.servers"
PROTOCOLS = "pytest_grpc_conformance.protocols"


class UnknownName(ValueError):
    """A name that nothing is registered under; the message has the legal names."""


class BrokenEntryPoint(RuntimeError):
    """An entry point that cannot be loaded; the message names it, and who brought it."""


@functools.cache
def names(group: str) -> tuple[str, ...]:
    """The names in an entry point group: our own first, in our order, then third parties' sorted."""
    own, others = [], set()
    for point in importlib.metadata.entry_points(group=group):
        if point.value.startswith("pytest_grpc_conformance."):
            own.append(point.name)
        else:
            others.add(point.name)
    return tuple(dict.fromkeys([*own, *sorted(others)]))


def check(group: str, kind: str, name: str, *, besides: tuple[str, ...] = ()) -> None:
    """Raise ``UnknownName`` unless ``name`` is registered, or one of ``besides``.

    ``kind`` is the word for the message.
    """
    legal = (*names(group), *besides)
    if name not in legal:
        import difflib

        near = difflib.get_close_matches(name, legal, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UnknownName(f"unknown {kind} {name!r}{hint}; legal names: {', '.join(legal)}")


def load(servers: Iterable[str], protocols: Iterable[str]) -> None:
    """Load everything that a run will use. Raises ``UnknownName`` or ``BrokenEntryPoint``."""
    for name in servers:
        server_library(name)
    for name in protocols:
        protocol(name)


def _load(group: str, name: str, kind: type[T]) -> T:
    for point in importlib.metadata.entry_points(group=group, name=name):
        who = f"{point.value} ({name} of {point.dist.name if point.dist else 'an unknown distribution'})"
        try:
            loaded = point.load()
            made = loaded() if isinstance(loaded, type) else loaded
        except Exception as error:
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            raise BrokenEntryPoint(f"{who} cannot be loaded: {problem}") from error
        if not isinstance(made, kind):
            raise BrokenEntryPoint(f"{who} is not a {kind.__name__}, nor a class of one")
        return made
    raise UnknownName(f"nothing is registered as {name!r} in {group}")


@functools.cache
def server_library(name: str) -> ServerLibrary:
    """The server library of that name. Raises ``UnknownName`` or ``BrokenEntryPoint``."""
    check(SERVERS, "server", name)
    from pytest_grpc_conformance.servers.base import ServerLibrary

    return _load(SERVERS, name, ServerLibrary)  # type: ignore[type-abstract]


@functools.cache
def protocol(name: str) -> WireProtocol:
    """The protocol of that name. Raises ``UnknownName`` or ``BrokenEntryPoint``."""
    check(PROTOCOLS, "protocol", name)
    from pytest_grpc_conformance.protocols.base import WireProtocol

    return _load(PROTOCOLS, name, WireProtocol)  # type: ignore[type-abstract]
