"""grpcio's own asyncio server, ``grpc.aio``."""

from __future__ import annotations

from typing import ClassVar

from pytest_grpc_conformance.servers.base import RunningServer, ServerLibrary, ServerSetup, start_aio


class GrpcioAio(ServerLibrary):
    """``grpc.aio.server()`` of grpcio."""

    name: ClassVar[str] = "grpcio"
    requirement: ClassVar[str] = "grpcio>=1.81.1"

    async def start(self, setup: ServerSetup) -> RunningServer:
        import grpc.aio

        return await start_aio(grpc.aio.server, setup)
