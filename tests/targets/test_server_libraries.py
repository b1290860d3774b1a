"""The server libraries behind their one interface."""

from __future__ import annotations

import pytest

from pytest_grpc_conformance import registry
from pytest_grpc_conformance.servers.base import BindFailed, RunningServer, ServerLibrary, ServerSetup, stop_and_drop
from pytest_grpc_conformance.targets.loop_thread import LoopThread


@pytest.fixture(params=["grpcio", "pygrpc-native"])
def library(request: pytest.FixtureRequest) -> ServerLibrary:
    return registry.server_library(request.param)


def start(library: ServerLibrary, loop: LoopThread, port: int = 0, host: str = "127.0.0.1") -> RunningServer:
    return loop.run(library.start(ServerSetup((), host=host, port=port)), 10)


def stop(server: RunningServer, loop: LoopThread) -> None:
    loop.run(stop_and_drop([server], None), 10)


def test_each_server_gets_a_port_of_its_own(library: ServerLibrary, loop: LoopThread) -> None:
    servers = [start(library, loop) for _ in range(3)]
    assert len({server.port for server in servers}) == 3
    for server in servers:
        stop(server, loop)


def test_port_of_another_server_is_never_shared(library: ServerLibrary, loop: LoopThread) -> None:
    first = start(library, loop)
    with pytest.raises(BindFailed, match=f"127.0.0.1:{first.port}"):
        start(library, loop, first.port)
    stop(first, loop)
    again = start(library, loop, first.port)
    assert again.port == first.port, "and it is free once the server has stopped"
    stop(again, loop)


def test_address_that_is_not_ours_cannot_be_had(library: ServerLibrary, loop: LoopThread) -> None:
    with pytest.raises(BindFailed):
        start(library, loop, host="192.0.2.1")


def test_installed_library_tells_its_version_and_an_old_one_its_remedy(library: ServerLibrary) -> None:
    from importlib.metadata import version

    found = library.availability()
    assert found.available
    assert found.version == version(library.name)

    class Newer(type(library)):  # type: ignore[misc]
        requirement = f"{library.name}>=1000"

    old = Newer.availability()
    assert not old.available
    assert old.version == found.version
    assert old.reason == f"{library.name} {found.version} is installed, >=1000 is needed"
    assert old.remedy == f"pip install '{library.name}>=1000'"
