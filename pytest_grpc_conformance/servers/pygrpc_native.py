"""pygrpc-native's asyncio server: ``grpc.aio``'s interface over an HTTP/2 stack that runs outside the GIL."""

from __future__ import annotations

from typing import ClassVar

from pytest_grpc_conformance.servers.base import RunningServer, ServerLibrary, ServerSetup, start_aio


class PygrpcNativeAio(ServerLibrary):
    """``pygrpc_native.aio.server()``."""

    name: ClassVar[str] = "pygrpc-native"
    requirement: ClassVar[str] = "pygrpc-native>=0.5.0"
    # It hands request streams to a grpc.aio server behind it, by method, which grpcio ignores before 1.84.
    companions: ClassVar[tuple[str, ...]] = ("grpcio>=1.84",)

    async def start(self, setup: ServerSetup) -> RunningServer:
        import pygrpc_native.aio

        return await start_aio(pygrpc_native.aio.server, setup)
