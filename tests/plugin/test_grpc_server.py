"""``grpc_server``: users' own servicers on each server library, in synchronous and asynchronous tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugin.echo import ECHO, FIXTURES
from tests.running import Ran, project, run_pytest

NO_LOOP_SCOPE = "ignore:The configuration option"
"""pytest-asyncio warns while its own key is unset, and pytest refuses the key where pytest-asyncio is not loaded."""


def run(folder: Path, test: str, *arguments: str, plugins: tuple[str, ...] = (), ini: str = "") -> Ran:
    project(folder, echo=ECHO, test_echo=FIXTURES + test)
    (folder / "pytest.ini").write_text(f"[pytest]\nfilterwarnings =\n    error\n    {NO_LOOP_SCOPE}\n{ini}")
    return run_pytest(folder, "-v", *arguments, plugins=("grpc_conformance", *plugins))


def test_server_fixture_runs_each_test_on_each_library(tmp_path: Path) -> None:
    result = run(tmp_path, "def test_call(grpc_stub):\n    assert grpc_stub.Call(b'hello') == b'async hello'\n")
    assert result.results() == "2 passed"
    assert "test_call[grpcio] PASSED" in result.out
    assert "test_call[pygrpc-native] PASSED" in result.out


@pytest.mark.parametrize("server", ["grpcio", "pygrpc-native"])
def test_grpc_server_option_chooses_the_library(tmp_path: Path, server: str) -> None:
    test = "def test_call(grpc_server, grpc_server_library):\n    print('on', type(grpc_server.native).__module__)\n"
    result = run(tmp_path, test, "-s", "--grpc-server", server)
    assert result.results() == "1 passed"
    assert f"on {'grpc.aio' if server == 'grpcio' else 'pygrpc_native'}" in result.out


def test_grpc_server_option_repeats_in_the_order_given(tmp_path: Path) -> None:
    test = "def test_call(grpc_server):\n    pass\n"
    result = run(tmp_path, test, "--grpc-server", "pygrpc-native", "--grpc-server", "grpcio")
    names = [line.partition("[")[2].partition("]")[0] for line in result.lines if "PASSED" in line]
    assert names == ["pygrpc-native", "grpcio"]


def test_synchronous_servicers_run_off_the_main_thread(tmp_path: Path) -> None:
    test = """
@pytest.fixture
def grpc_servicer():
    return echo.SyncEcho()

def test_call(grpc_stub):
    assert grpc_stub.Call(b"hello", timeout=5) == b"sync hello"
    assert list(grpc_stub.Count(b"3", timeout=5)) == [b"0", b"1", b"2"]
"""
    assert run(tmp_path, test).results() == "2 passed"


ASYNC_SERVICER = """
async def made():
    return echo.Echo()

@pytest.fixture
def grpc_servicer():
    return made()

def test_call(grpc_stub):
    raise SystemError("ran")
"""
ASYNC_FIXTURE = """
@pytest.fixture
async def grpc_servicer():
    return echo.Echo()

def test_call(grpc_stub):
    raise SystemError("ran")
"""


@pytest.mark.parametrize("test", [ASYNC_SERVICER, ASYNC_FIXTURE], ids=["servicer", "fixture"])
def test_servicer_that_an_async_function_makes_is_told_in_one_line(tmp_path: Path, test: str) -> None:
    result = run(tmp_path, test, "--grpc-server", "grpcio")
    assert result.results() == "1 error"
    told = result.out.partition("\n___")[2].partition("short test summary")[0]
    lines = [line for line in told.splitlines()[1:] if line.strip("= ")]
    assert "async f" in lines[0]
    # pytest from 9.1 on refuses the fixture by itself, and names a page.
    assert len(lines) == 1 or (test == ASYNC_FIXTURE and lines[1].startswith("See: https://docs.pytest.org")), told
    assert "never awaited" not in result.text
    assert "Traceback" not in result.text


def test_several_servicers_share_one_server(tmp_path: Path) -> None:
    test = """
@pytest.fixture
def grpc_servicers():
    other = lambda servicer, server: echo.add_echo(servicer, server, "t.Other")
    return [(echo.add_echo, echo.Echo()), (other, echo.Echo())]

def test_both(grpc_channel):
    for name in ("t.Echo", "t.Other"):
        assert echo.EchoStub(grpc_channel, name).Call(b"x", timeout=5) == b"async x"
"""
    assert run(tmp_path, test).results() == "2 passed"


def test_server_options_and_interceptors_take_effect(tmp_path: Path) -> None:
    test = """
import grpc
import grpc.aio

class Counting(grpc.aio.ServerInterceptor):
    def __init__(self):
        self.methods = []

    async def intercept_service(self, continuation, details):
        self.methods.append(details.method)
        return await continuation(details)

COUNTING = Counting()

@pytest.fixture
def grpc_interceptors():
    COUNTING.methods.clear()
    return [COUNTING]

@pytest.fixture
def grpc_server_options():
    return [("grpc.max_receive_message_length", 1000)]

def test_limits(grpc_stub):
    assert grpc_stub.Call(b"x" * 1000, timeout=5)
    with pytest.raises(grpc.RpcError) as caught:
        grpc_stub.Call(b"x" * 1001, timeout=5)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert COUNTING.methods[0] == "/t.Echo/Call"
"""
    assert run(tmp_path, test).results() == "2 passed"


def test_address_port_and_channel_lead_to_the_server_until_it_is_stopped(tmp_path: Path) -> None:
    test = """
import socket

import grpc

def test_stop(grpc_server, grpc_channel):
    assert grpc_server.address == f"{grpc_server.host}:{grpc_server.port}"
    assert grpc_server.host == "127.0.0.1"
    assert grpc_channel is grpc_server.channel
    assert hasattr(grpc_server.native, "add_insecure_port")
    socket.create_connection((grpc_server.host, grpc_server.port)).close()
    grpc_server.stop(0)
    with pytest.raises(OSError):
        socket.create_connection((grpc_server.host, grpc_server.port), 1)
    with pytest.raises(RuntimeError, match="stopped"):
        grpc_server.native
    grpc_server.stop()
"""
    assert run(tmp_path, test).results() == "2 passed"


def test_each_test_gets_a_server_of_its_own_and_its_grace_is_kept(tmp_path: Path) -> None:
    test = """
import threading

PORTS = set()

class Held(echo.SyncEcho):
    def __init__(self):
        self.entered, self.go_on = threading.Event(), threading.Event()

    def Call(self, request, context):
        self.entered.set()
        assert self.go_on.wait(10)
        return b"done"

@pytest.fixture
def grpc_servicer():
    return Held()

def test_running_call_ends_within_the_grace(grpc_server, grpc_servicer):
    PORTS.add(grpc_server.port)
    call = echo.EchoStub(grpc_server.channel).Call.future(b"x")
    assert grpc_servicer.entered.wait(5)
    stopper = threading.Thread(target=grpc_server.stop, args=(10,))
    stopper.start()
    grpc_servicer.go_on.set()
    assert call.result(5) == b"done"
    stopper.join(5)
    assert not stopper.is_alive()

def test_another_port(grpc_server):
    PORTS.add(grpc_server.port)
    assert len(PORTS) >= 2
"""
    assert run(tmp_path, test).results() == "4 passed"


ASYNC_TEST = """
import grpc.aio

MARK
async def test_call(grpc_server):
    async with grpc.aio.insecure_channel(grpc_server.address) as channel:
        stub = echo.EchoStub(channel)
        assert await stub.Call(b"hello", timeout=5) == b"async hello"
        assert [item async for item in stub.Count(b"3", timeout=5)] == [b"0", b"1", b"2"]

MARK
async def test_stop(grpc_server):
    async with grpc.aio.insecure_channel(grpc_server.address) as channel:
        assert await echo.EchoStub(channel).Call(b"hello", timeout=5)
        await grpc_server.stop_async(1)
    async with grpc.aio.insecure_channel(grpc_server.address) as later:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo.EchoStub(later).Call(b"hello", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

def test_blocking_test_beside_them(grpc_stub):
    assert grpc_stub.Call(b"x", timeout=5) == b"async x"
"""


@pytest.mark.parametrize(
    ("plugin", "mark", "ini"),
    [
        pytest.param("asyncio", "@pytest.mark.asyncio", "asyncio_mode = strict\n", id="asyncio=strict"),
        pytest.param("asyncio", "", "asyncio_mode = auto\n", id="asyncio=auto"),
        pytest.param("anyio", "@pytest.mark.anyio", "", id="anyio"),
    ],
)
def test_asynchronous_tests_use_a_channel_on_their_own_loop(tmp_path: Path, plugin: str, mark: str, ini: str) -> None:
    backend = "\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    result = run(tmp_path, backend + ASYNC_TEST.replace("MARK", mark), plugins=(plugin,), ini=ini)
    assert result.results() == "6 passed", result.text


def test_servicers_in_the_wrong_form_are_named_in_one_line(tmp_path: Path) -> None:
    test = "@pytest.fixture\ndef grpc_servicers():\n    return [echo.Echo()]\n\ndef test_call(grpc_server):\n    pass\n"
    result = run(tmp_path, test, "--grpc-server", "grpcio")
    assert result.results() == "1 error"
    assert "must return pairs (add_to_server, servicer)" in result.out


def test_servicer_that_blocks_the_server_loop_does_not_spoil_the_tests_after_it(tmp_path: Path) -> None:
    test = """
import time

class Blocks(echo.Echo):
    async def Call(self, request, context):
        time.sleep(3600)

@pytest.fixture
def blocking():
    return Blocks()

class TestBlocked:
    @pytest.fixture
    def grpc_servicer(self, blocking):
        return blocking

    def test_blocks(self, grpc_stub):
        with pytest.raises(Exception):
            grpc_stub.Call(b"x", timeout=0.2)

def test_works(grpc_stub):
    assert grpc_stub.Call(b"x", timeout=5) == b"async x"
"""
    result = run(tmp_path, test, "--grpc-server", "grpcio", "--grpc-timeout-scale", "0.1", "-p", "no:randomly")
    assert result.results() == "2 passed, 1 error", result.text
    assert "did not end within 1 s" in result.out
    assert "Traceback" not in result.err


@pytest.mark.parametrize("name", ["grpc_server", "grpc_target"])
def test_fixture_that_is_asked_for_too_late_says_what_to_do(tmp_path: Path, name: str) -> None:
    result = run(tmp_path, f"def test_call(request):\n    request.getfixturevalue('{name}')\n")
    assert result.results() == "1 failed"
    assert "name it as an argument of the test" in result.out
    assert "AttributeError" not in result.out


def test_engine_fixture_is_an_engine_of_the_tests_own_that_is_closed_after_it(tmp_path: Path) -> None:
    test = """
from pytest_grpc_conformance.engines.milestone import EngineDown
from pytest_grpc_conformance.engines.script import one_by_one, script, tokens

SEEN = []

@pytest.mark.parametrize("number", [1, 2])
def test_engine(grpc_engine, number):
    gate = grpc_engine.prepare("r", script(one_by_one(tokens(2))))
    gate.release(1)
    SEEN.append(gate)
    assert len(set(map(id, SEEN))) == number

def test_closed():
    for gate in SEEN:
        with pytest.raises(EngineDown):
            gate.delivered(1).wait(5)
"""
    assert run(tmp_path, test).results() == "3 passed"
