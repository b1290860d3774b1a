"""A server library under test, without any protocol: cases serve handlers of their own on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import grpc

from pytest_grpc_conformance.servers.base import RunningServer, ServerLibrary, ServerSetup, stop_and_drop
from pytest_grpc_conformance.targets import child
from pytest_grpc_conformance.targets.loop_thread import LoopThread
from pytest_grpc_conformance.transcript import Transcript
from pytest_grpc_conformance.wire import stock
from pytest_grpc_conformance.wire.connection import RawConnection
from pytest_grpc_conformance.wire.seen import Seen

T = TypeVar("T")
SERVICE = "conformance.Wire"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Handlers = Mapping[str, Handler]


def path(method: str) -> str:
    """The full path of a method that is served under a bare name."""
    return f"/{SERVICE}/{method}"


def unary(function: Callable[..., Any]) -> Handler:
    """A handler of one request and one response, both as bytes."""
    return grpc.unary_unary_rpc_method_handler(function)


def server_streaming(function: Callable[..., Any]) -> Handler:
    """A handler of one request and a stream of responses, all as bytes."""
    return grpc.unary_stream_rpc_method_handler(function)


def client_streaming(function: Callable[..., Any]) -> Handler:
    """A handler of a stream of requests and one response, all as bytes."""
    return grpc.stream_unary_rpc_method_handler(function)


def bidi(function: Callable[..., Any]) -> Handler:
    """A handler of a stream of requests and a stream of responses, all as bytes."""
    return grpc.stream_stream_rpc_method_handler(function)


async def _echo(request: bytes, context: Any) -> bytes:
    return request


ECHO = unary(_echo)
"""A unary handler that gives its request back."""


def echoing(seen: Seen) -> dict[str, Handler]:
    """Handlers of all four kinds that note each request as ``message`` and give it back (``ClientStream`` gives all of
    them back as one); a clean end of a request stream is noted as ``end``."""

    async def one(request: bytes, context: Any) -> bytes:
        seen.note("message", request)
        return request

    async def one_as_stream(request: bytes, context: Any) -> Any:
        seen.note("message", request)
        yield request

    async def each(requests: Any, context: Any) -> Any:
        async for request in requests:
            seen.note("message", request)
            yield request
        seen.note("end")

    async def joined(requests: Any, context: Any) -> bytes:
        return b"".join([request async for request in each(requests, context)])

    return {
        "Unary": unary(one),
        "ServerStream": server_streaming(one_as_stream),
        "ClientStream": client_streaming(joined),
        "Bidi": bidi(each),
    }


def registering(handlers: Handlers) -> Callable[[Any], None]:
    """A function that registers handlers as generated code does: generic, and by method as well."""

    def register(server: Any) -> None:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, dict(handlers)),))
        server.add_registered_method_handlers(SERVICE, dict(handlers))

    return register


class LibraryTarget:
    """A server library for one case. ``close`` takes down what the case has served and connected."""

    def __init__(
        self,
        library: ServerLibrary,
        oracle: ServerLibrary,
        loop: LoopThread,
        *,
        timeout: float,
        nightly: bool = False,
        plan: str | None = None,
    ) -> None:
        self.library = library
        self.timeout = timeout
        self.nightly = nightly
        """Whether the run has time for long cases."""
        self.transcript = Transcript()
        self.seen = Seen()
        """What the handlers of the case note."""
        self._plan = plan
        self._oracle = oracle
        self._loop = loop
        self._served: list[Served] = []

    @property
    def name(self) -> str:
        return self.library.name

    @property
    def is_oracle(self) -> bool:
        """Whether this is the library that PARITY rows are about."""
        return type(self.library) is type(self._oracle)

    def oracle(self) -> LibraryTarget:
        """The library that PARITY rows are about, for the same exchange in the same run; close it."""
        return LibraryTarget(self._oracle, self._oracle, self._loop, timeout=self.timeout)

    def serve(
        self,
        handlers: Handlers | None = None,
        /,
        *,
        register: Iterable[Callable[[Any], None]] = (),
        options: Sequence[tuple[str, Any]] = (),
        interceptors: Sequence[Any] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        **arguments: Any,
    ) -> Served:
        """Start a server. ``handlers`` are served under ``path(name)``; ``register`` get the library's server object,
        ``arguments`` go to the library's ``server`` function.

        Raises ``BindFailed``, and whatever the library raises.
        """
        functions = [*([registering(handlers)] if handlers is not None else []), *register]
        setup = ServerSetup(
            functions, options=options, interceptors=interceptors, host=host, port=port, arguments=arguments
        )
        running = self._loop.run(self.library.start(setup), self.timeout)
        served = Served(running, host, self._loop, self.transcript, self.timeout)
        self.transcript.note("server", f"{self.library.name} listens on {served.address}")
        self._served.append(served)
        return served

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop of the servers. Raises ``LoopStuck``."""
        return self._loop.run(coroutine, timeout or self.timeout)

    def in_child(self, function: Callable[[LibraryTarget], Any]) -> child.ChildEnd:
        """Run a function at the top of the case's file in a process of its own, on a target like this one."""
        ended = child.run(function, self.library.name, self._plan, self.timeout)
        self.transcript.note("server", f"the process ended with {ended.code}: {ended.tail}")
        return ended

    def close(self) -> None:
        """Close every connection, then stop every server."""
        while self._served:
            self._served.pop().close()


class Served:
    """A running server with a case's handlers. It lives until the case ends, or ``stop`` is called."""

    def __init__(
        self, running: RunningServer, host: str, loop: LoopThread, transcript: Transcript, timeout: float
    ) -> None:
        self.port = running.port
        self.address = ServerSetup((), host=host, port=self.port).address
        self.timeout = timeout
        self._held = [running]
        self._loop = loop
        self._transcript = transcript
        self._raw: list[RawConnection] = []
        self._channels: list[grpc.Channel] = []

    @property
    def native(self) -> Any:
        """The library's own server object."""
        return self._held[0].native

    def connect(self, **options: Any) -> RawConnection:
        """A raw connection, closed with the case; ``options`` are those of ``RawConnection``."""
        number = len(self._raw) + 1
        arguments = {"timeout": self.timeout, "label": f"raw {number}", **options}
        connection = RawConnection(self.address, self._transcript, **arguments)
        self._raw.append(connection)
        return connection

    def channel(self, *options: tuple[str, Any], address: str | None = None) -> grpc.Channel:
        """A stock channel on a connection of its own, closed with the case."""
        channel = grpc.insecure_channel(address or self.address, options=[*stock.OPTIONS, *options])
        self._channels.append(channel)
        return channel

    def call(self, method: str, requests: bytes | Iterable[bytes] = b"", **options: Any) -> stock.Outcome:
        """A stock call of a method, by its bare name, on a channel of its own. See ``stock.call``.

        Without a ``timeout`` the call gets the case's own as its deadline.
        """
        arguments = {"timeout": self.timeout, **options}
        outcome = stock.call(self.channel(), path(method), requests, **arguments)
        self._transcript.note("server", f"stock {method}: {outcome}")
        return outcome

    def begin_stop(self, grace: float | None) -> concurrent.futures.Future[None]:
        """Begin to stop: it has begun when this returns; the future is done when ``stop`` has returned."""
        self._transcript.note("server", f"stop(grace={grace}) called")
        stopping = asyncio.run_coroutine_threadsafe(self._held[0].stop(grace), self._loop.loop)
        self._loop.run(asyncio.sleep(0), self.timeout)
        return stopping

    def stop(self, grace: float | None = None) -> None:
        """Stop the server and wait until it has stopped."""
        self._transcript.note("server", f"stop(grace={grace}) called")
        self._loop.run(stop_and_drop(self._held, grace), self.timeout + (grace or 0))
        self._transcript.note("server", "stop returned")

    def close(self) -> None:
        """Close every connection, then stop the server."""
        for connection in self._raw:
            connection.close()
        for channel in self._channels:
            channel.close()
        self._raw.clear()
        self._channels.clear()
        if self._held:
            self.stop(None)
