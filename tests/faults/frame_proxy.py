"""A faulty HTTP/2 layer: a proxy before a real server that changes, drops, adds or delays frames on their way."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from hpack import Decoder, Encoder

from pytest_grpc_conformance.wire.frames import DEFAULT_MAX_FRAME, HEADER_OCTETS, PREFACE, Flag, Kind, frame

Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Passing:
    """A frame on its way. ``fields`` is the decoded header block of HEADERS from the server (continuations joined)."""

    kind: int
    flags: int
    stream: int
    payload: bytes = b""
    fields: Fields | None = None

    @property
    def ends_stream(self) -> bool:
        return self.kind in (Kind.DATA, Kind.HEADERS) and bool(self.flags & Flag.END_STREAM)

    @property
    def is_trailers(self) -> bool:
        """A header block of the server that ends its stream."""
        return self.fields is not None and self.ends_stream

    def but(self, **changes: object) -> Passing:
        """The frame with other parts."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def with_field(self, name: str, value: str | bytes | None) -> Passing:
        """A header block with one field set, or taken out (``None``)."""
        assert self.fields is not None
        key, octets = name.encode(), value.encode() if isinstance(value, str) else value
        kept = tuple(item for item in self.fields if item[0] != key)
        return self.but(fields=kept if octets is None else (*kept, (key, octets)))


class FrameFault:
    """What a faulty server does with frames; one object for each connection. Override what is faulty.

    Both get one frame and return those that go on in its place. Header blocks of the client are not decoded (and must
    go on, as the server's compression state hangs on them).
    """

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [passing]

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        return [passing]

    def connected(self, send_to_client: Callable[[bytes], None], close: Callable[[], None]) -> None:
        """The connection stands; the functions send raw octets to the client, and end both connections, at any time."""


class FrameProxy:
    """Listens on a port of its own and passes each connection on, with its own ``FrameFault``."""

    def __init__(self, upstream_port: int, fault: Callable[[], FrameFault]) -> None:
        self.port = 0
        self._upstream_port = upstream_port
        self._fault = fault
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def start(self) -> FrameProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
            fault = self._fault()

            def close() -> None:
                writer.close()
                up_writer.close()

            fault.connected(writer.write, close)
            try:
                await _both(_pump(reader, up_writer, _ClientSide(fault)), _pump(up_reader, writer, _ServerSide(fault)))
            finally:
                up_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._running.discard(task)
            with contextlib.suppress(Exception):
                writer.close()


async def _both(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run both directions; once one has ended, the other gets its end too."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, side: _Side) -> None:
    try:
        while octets := await reader.read(65_536):
            writer.write(side.change(octets))
            await writer.drain()
    finally:
        with contextlib.suppress(Exception):
            writer.write_eof() if isinstance(side, _ClientSide) else writer.close()


class _Side:
    def __init__(self, fault: FrameFault) -> None:
        self._fault = fault
        self._buffer = b""

    def change(self, octets: bytes) -> bytes:
        self._buffer += octets
        out = b""
        while len(self._buffer) >= HEADER_OCTETS:
            size = HEADER_OCTETS + int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < size:
                break
            whole, self._buffer = self._buffer[:size], self._buffer[size:]
            out += self._changed(Passing(whole[3], whole[4], int.from_bytes(whole[5:9], "big"), whole[HEADER_OCTETS:]))
        return out

    def _changed(self, passing: Passing) -> bytes:
        raise NotImplementedError


class _ClientSide(_Side):
    """From the client to the server: the preface passes, header blocks stay encoded."""

    def __init__(self, fault: FrameFault) -> None:
        super().__init__(fault)
        self._preface = b""
        self._raw = type(fault).from_client is FrameFault.from_client

    def change(self, octets: bytes) -> bytes:
        if self._raw:
            return octets
        if len(self._preface) < len(PREFACE):
            part = octets[: len(PREFACE) - len(self._preface)]
            self._preface += part
            return part + super().change(octets[len(part) :])
        return super().change(octets)

    def _changed(self, passing: Passing) -> bytes:
        return b"".join(frame(p.kind, p.flags, p.stream, p.payload) for p in self._fault.from_client(passing))


class _ServerSide(_Side):
    """From the server to the client: header blocks are decoded, and encoded anew."""

    def __init__(self, fault: FrameFault) -> None:
        super().__init__(fault)
        self._decoder = Decoder(1 << 24)
        self._encoder = Encoder()
        self._block: Passing | None = None
        self._raw = type(fault).from_server is FrameFault.from_server

    def change(self, octets: bytes) -> bytes:
        return octets if self._raw else super().change(octets)

    def _changed(self, passing: Passing) -> bytes:
        if passing.kind == Kind.HEADERS:
            self._block = passing.but(payload=b"")
            return self._continued(passing)
        if passing.kind == Kind.CONTINUATION and self._block is not None:
            return self._continued(passing)
        return self._encoded(self._fault.from_server(passing))

    def _continued(self, passing: Passing) -> bytes:
        assert self._block is not None
        self._block = self._block.but(payload=self._block.payload + passing.payload)
        if not passing.flags & Flag.END_HEADERS:
            return b""
        block, self._block = self._block, None
        decoded = self._decoder.decode(block.payload, raw=True)
        fields = tuple((bytes(name), bytes(value)) for name, value in decoded)
        return self._encoded(
            self._fault.from_server(block.but(payload=b"", fields=fields, flags=block.flags & ~Flag.END_HEADERS))
        )

    def _encoded(self, frames: Sequence[Passing]) -> bytes:
        out = b""
        for passing in frames:
            if passing.fields is None:
                out += frame(passing.kind, passing.flags, passing.stream, passing.payload)
                continue
            block = self._encoder.encode(list(passing.fields))
            parts = [block[at : at + DEFAULT_MAX_FRAME] for at in range(0, len(block), DEFAULT_MAX_FRAME)] or [b""]
            for at, part in enumerate(parts):
                flags = passing.flags if at == 0 else 0
                flags |= Flag.END_HEADERS if at == len(parts) - 1 else 0
                out += frame(Kind.HEADERS if at == 0 else Kind.CONTINUATION, flags, passing.stream, part)
        return out
