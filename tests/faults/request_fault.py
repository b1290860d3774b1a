"""Faults in how a server reads requests: the fields of request headers are changed before the real server gets them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import types
from collections.abc import Callable, Generator, Sequence
from typing import Any

from hpack import Decoder, Encoder

from pytest_grpc_conformance.wire.frames import Flag, Kind
from tests.faults.faulty_library import with_function
from tests.faults.frame_proxy import Fields, FrameFault, Passing


class RequestFault(FrameFault):
    """Changes the fields of each request's headers. Header blocks must come whole, without padding or priority."""

    def __init__(self) -> None:
        self._decoder = Decoder(1 << 20)
        self._encoder = Encoder()

    def request(self, fields: Fields) -> Fields:
        """The fields that the real server gets in place of those that came."""
        raise NotImplementedError

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind != Kind.HEADERS:
            return [passing]
        assert passing.flags & Flag.END_HEADERS, passing
        assert not passing.flags & (Flag.PADDED | Flag.PRIORITY), passing
        decoded = self._decoder.decode(passing.payload, raw=True)
        fields = self.request(tuple((bytes(name), bytes(value)) for name, value in decoded))
        return [passing.but(payload=self._encoder.encode(list(fields)))]


def changing(name: str, change: Callable[[str], str | None]) -> type[RequestFault]:
    """A fault that changes every value of one field, or takes it out (``None``)."""
    key = name.encode()

    class Changing(RequestFault):
        def request(self, fields: Fields) -> Fields:
            changed = [(at, change(value.decode()) if at == key else value) for at, value in fields]
            return tuple(
                (at, value.encode() if isinstance(value, str) else value) for at, value in changed if value is not None
            )

    return Changing


Thrown = Callable[[BaseException], BaseException]


def thrown_as(thrown: Thrown) -> Callable[[Any, str], Any]:
    """A change of handlers: what is raised at their awaits, as ``CancelledError`` is, is replaced."""
    return lambda handler, path: with_function(handler, lambda function: _driven_function(function, thrown))


def _driven_function(function: Any, thrown: Thrown) -> Any:
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def generator(request: Any, context: Any) -> Any:
            responses = function(request, context)
            while True:
                try:
                    response = await _driven(responses.__anext__(), thrown)
                except StopAsyncIteration:
                    return
                yield response

        return generator
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(request: Any, context: Any) -> Any:
            return await _driven(function(request, context), thrown)

        return coroutine
    return function


@types.coroutine
def _driven(inner: Any, thrown: Thrown) -> Generator[Any, Any, Any]:
    error: BaseException | None = None
    while True:
        try:
            awaited = inner.send(None) if error is None else inner.throw(error)
        except StopIteration as stop:
            return stop.value
        error = None
        try:
            yield awaited
        except GeneratorExit:
            inner.close()
            raise
        except BaseException as came:
            error = thrown(came)


def cancelled_again(handler: Any, path: str) -> Any:
    """A handler without streams that is cancelled at every await that follows its cancellation."""

    def change(function: Any) -> Any:
        if not inspect.iscoroutinefunction(function):
            return function

        @functools.wraps(function)
        async def coroutine(request: Any, context: Any) -> Any:
            running = asyncio.ensure_future(function(request, context))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                while not running.done():
                    running.cancel()
                    await asyncio.sleep(0)
                raise

        return coroutine

    return with_function(handler, change)
