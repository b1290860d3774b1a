"""Faults in how a server meets a connection that has not sent the preface."""

from __future__ import annotations

import asyncio
import contextlib

from pytest_grpc_conformance.wire.frames import PREFACE
from tests.faults.faulty_library import FaultyLibrary
from tests.faults.frame_proxy import FrameFault, FrameProxy
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


class PrefaceReader(FrameProxy):
    """Reads the preface itself before it connects to the server; what follows goes through. Override what is faulty."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__(upstream_port, FrameFault)

    async def preface(self, reader: asyncio.StreamReader) -> bytes:
        """What came in place of the preface, complete or not."""
        came = b""
        while len(came) < len(PREFACE) and PREFACE.startswith(came):
            octets = await reader.read(len(PREFACE) - len(came))
            if not octets:
                break
            came += octets
        return came

    async def refuse(self, writer: asyncio.StreamWriter) -> None:
        """End a connection that began with something else."""

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await self.preface(reader) == PREFACE:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)
            up_writer.write(PREFACE)
            both = [asyncio.ensure_future(pipe(reader, up_writer)), asyncio.ensure_future(pipe(up_reader, writer))]
            try:
                await asyncio.wait(both)
            finally:
                for task in both:
                    task.cancel()
                up_writer.transport.abort()
        else:
            await self.refuse(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self.converse(reader, writer)
        self._running.discard(task)
        writer.close()


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while octets := await reader.read(65_536):
        writer.write(octets)
        await writer.drain()
    writer.close()


class RefusesInWords(PrefaceReader):
    """Answers as HTTP/1.1 does, and waits for the next request."""

    async def refuse(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await asyncio.Event().wait()


class OneAtATime(PrefaceReader):
    """One worker reads the prefaces of all connections."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__(upstream_port)
        self._worker = asyncio.Lock()

    async def preface(self, reader: asyncio.StreamReader) -> bytes:
        async with self._worker:
            return await super().preface(reader)


refuses_in_words = Mutant(library=FaultyLibrary(proxy=RefusesInWords))
one_at_a_time = Mutant(library=FaultyLibrary(proxy=OneAtATime))
waits_for_prefaces = Mutant(library=FaultyLibrary(proxy=PrefaceReader))
"""However long: the server behind it never sees a connection whose preface stops half-way."""

FAULTS = (
    Fault(
        "refuses_in_words",
        caught_by={"grpc_headers_preface/no_preface_ends_the_connection": "GRPC-HDR-17"},
        protocols=WIRE,
    ),
    Fault(
        "one_at_a_time",
        caught_by={"grpc_headers_preface/half_prefaces_hold_nobody_up": "GRPC-HDR-18"},
        protocols=WIRE,
    ),
    Fault(
        "waits_for_prefaces",
        caught_by={"grpc_headers_preface/half_preface_is_dropped": "GRPC-HDR-18"},
        protocols=WIRE,
        nightly=True,
    ),
)
