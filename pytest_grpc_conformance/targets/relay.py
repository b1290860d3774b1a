"""A TCP relay before a server, which a case can cut: how a client that loses its network looks to the server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct


class Relay:
    """Passes bytes both ways between clients and one address, until ``cut``. Its methods run on one loop."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Future[tuple[None, None]]] = set()
        self.port = 0

    async def start(self) -> Relay:
        """Listen on a loopback port that the kernel chooses."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def cut(self) -> None:
        """Reset every connection on both sides, with no HTTP/2 farewell."""
        for writer in self._writers:
            connection = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):  # A socket that is gone already is cut.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def close(self) -> None:
        """Cut, stop listening, and wait for the pumps."""
        self._server.close()
        await self.cut()
        for pumps in self._pumps:
            pumps.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        pumps = asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        self._writers |= both
        self._pumps.add(pumps)
        pumps.add_done_callback(self._pumps.discard)
        pumps.add_done_callback(lambda _: self._writers.difference_update(both))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(64 * 1024):
            sink.write(data)
            await sink.drain()
    with contextlib.suppress(OSError):
        sink.close()
