"""What a server library has to bring to be tested: a name, a version, and a server that starts and stops.

A third party adds a library by an entry point in the group ``pytest_grpc_conformance.servers`` that names a
``ServerLibrary`` subclass.
"""

from __future__ import annotations

import abc
import functools
import importlib.metadata
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from packaging.requirements import Requirement


class BindFailed(RuntimeError):
    """The server could not listen on the address that it was given."""


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """What a server is started with.

    ``register`` are functions that register servicers or handlers on the library's server object, as generated
    ``add_XServicer_to_server`` functions do. ``options`` are grpcio's channel arguments. ``host`` is a bare host (IPv6
    addresses need no brackets), or ``unix:path``.
    """

    register: Sequence[Callable[[Any], None]]
    options: Sequence[tuple[str, Any]] = ()
    interceptors: Sequence[Any] = ()
    host: str = "127.0.0.1"
    port: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments for the library's ``server`` function, such as ``maximum_concurrent_rpcs``."""

    @property
    def address(self) -> str:
        """``host:port`` as the libraries take it."""
        if self.host.startswith("unix:"):
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RunningServer(abc.ABC):
    """A started server. Its methods run on the loop that started it."""

    port: int
    native: Any
    """The library's own server object."""

    @abc.abstractmethod
    async def stop(self, grace: float | None) -> None:
        """Refuse new calls, give running ones ``grace`` seconds (``None``: none), then end them."""


async def stop_and_drop(held: list[RunningServer], grace: float | None) -> None:
    """Stop the server in a list and drop it there, so that the last reference to it goes on its own loop.

    grpcio closes its poller when its last server goes, which fails in another thread while the loop reads from it.
    """
    try:
        await held[0].stop(grace)
    finally:
        held.clear()


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a library can be used here. ``reason`` says in one line why not, ``remedy`` what to type."""

    version: str | None
    reason: str = ""
    remedy: str = ""

    @property
    def available(self) -> bool:
        return not self.reason


@functools.cache
def _availability(requirement: str) -> Availability:
    wanted = Requirement(requirement)
    remedy = f"pip install '{requirement}'"
    try:
        version = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return Availability(None, f"{wanted.name} is not installed", remedy)
    if not wanted.specifier.contains(version, prereleases=True):
        reason = f"{wanted.name} {version} is installed, {wanted.specifier} is needed"
        return Availability(version, reason, remedy)
    return Availability(version)


class ServerLibrary(abc.ABC):
    """One gRPC server library."""

    name: ClassVar[str]
    """The word for ``--grpc-server``."""
    requirement: ClassVar[str]
    """The distribution with its floor, as in ``pip install``."""
    companions: ClassVar[tuple[str, ...]] = ()
    """Distributions with floors that the library leans on beside its own, where it is to serve every kind of method."""

    @classmethod
    def availability(cls) -> Availability:
        """Looks at the installed distributions, once; imports nothing of the library."""
        return _availability(cls.requirement)

    @classmethod
    def whole(cls) -> Availability:
        """As ``availability``, for cases that need every kind of method."""
        found = (_availability(requirement) for requirement in cls.companions)
        return next((one for one in found if not one.available), cls.availability())

    @abc.abstractmethod
    async def start(self, setup: ServerSetup) -> RunningServer:
        """Start a server on the running loop. Raises ``BindFailed`` when the address cannot be had."""


@dataclass(slots=True)
class AioServer(RunningServer):
    """A server object with ``grpc.aio``'s interface: ``start()`` and ``stop(grace)`` are coroutines."""

    native: Any
    port: int
    stopped: bool = field(default=False)

    async def stop(self, grace: float | None) -> None:
        self.stopped = True
        await self.native.stop(grace)


def _after(own: tuple[str, Any], options: Any) -> Any:
    """The options after one of the suite, in the form in which a case gave them: authors may rely on any."""
    if options is None:
        return None
    if isinstance(options, (list, tuple)):
        return type(options)([own, *options])
    return itertools.chain((own,), options)


async def start_aio(make: Callable[..., Any], setup: ServerSetup) -> AioServer:
    """Start a server that has ``grpc.aio``'s interface; ``make`` is the library's ``server`` function."""
    # Without this, grpcio shares a port with whoever holds it already, and a case could talk to a stranger.
    options = _after(("grpc.so_reuseport", 0), setup.options)
    server = make(options=options, interceptors=tuple(setup.interceptors) or None, **setup.arguments)
    for register in setup.register:
        register(server)
    try:
        port = server.add_insecure_port(setup.address)
    except RuntimeError as error:
        raise BindFailed(f"cannot listen on {setup.address}: {error}") from error
    if not port:
        raise BindFailed(f"cannot listen on {setup.address}")
    await server.start()
    return AioServer(server, port)
