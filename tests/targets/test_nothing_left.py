"""After the cases of a run nothing is left: no thread, no task, no socket; and nothing listens but on the loopback."""

from __future__ import annotations

import ast
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_grpc_conformance import registry
from pytest_grpc_conformance.engines.script import one_by_one, script, tokens
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.targets.inprocess import InprocessTarget
from pytest_grpc_conformance.targets.loop_thread import LoopStuck, LoopThread
from pytest_grpc_conformance.targets.plan import TargetPlan
from tests.running import project, run_pytest
from tests.targets.live import served

LIBRARIES = pytest.mark.parametrize("library", ["grpcio", "pygrpc-native"])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def thread_count() -> int:
    """Without those of a loop's executor, which end with the loop and are at most a handful."""
    return sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())


def comes_true(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def one_case(library: str, loop: LoopThread, *, leave: str) -> None:
    """A target on which something is left running when it is closed."""
    wire = registry.protocol("openengine")
    target = InprocessTarget(registry.server_library(library), wire, loop, timeout=10).start()
    try:
        if leave == "nothing":
            target.play(script(one_by_one(tokens(3))), Request("r")).rest()
        elif leave == "stream":
            gate = target.prepare("r", script(one_by_one(tokens(3))))
            stream = target.generate(Request("r"))
            gate.release(1)
            stream.next()
        elif leave == "relay":
            relay = target.relay()
            client = target.connect(address=relay.address)
            target.prepare("r", script(one_by_one(tokens(3))))
            client.generate(Request("r"))
            client.wait_connected()
        else:
            target.stop(0)
    finally:
        target.close()


@LIBRARIES
@pytest.mark.parametrize("leave", ["nothing", "stream", "relay", "stopped"])
def test_closed_targets_leave_no_thread_and_no_descriptor(library: str, leave: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = {thread.name for thread in threading.enumerate()}
        loop = LoopThread()
        one_case(library, loop, leave=leave)  # What the libraries make once and keep.
        gc.collect()
        threads, opened = thread_count(), descriptors()
        for _ in range(8):
            one_case(library, loop, leave=leave)
        gc.collect()
        # A library may end a thread of its own a moment later, and it may have fewer by then.
        assert comes_true(lambda: thread_count() <= threads and descriptors() <= opened), (
            f"{threads} threads and {opened} descriptors became {threading.enumerate()} and {descriptors()}"
        )

        async def tasks() -> int:
            import asyncio

            return len(asyncio.all_tasks())

        assert loop.run(tasks(), 5) <= 2, "the loop's own main, and this one"
        loop.close()
        gc.collect()
        left = {thread.name for thread in threading.enumerate()} - before
        assert not {name for name in left if "loop" in name or "read" in name or "engine" in name}


def test_target_whose_servicer_blocks_the_loop_gives_up_and_closes_its_engine() -> None:
    class Blocks:
        async def Generate(self, request: object, context: object) -> None:
            entered.set()
            go_on.wait(30)

    def servicers(engine: object) -> list[tuple[object, object]]:
        import grpc

        wire = registry.protocol("openengine")
        _, service, method = wire.generate.path.split("/")

        def add(servicer: Blocks, server: object) -> None:
            handler = grpc.unary_stream_rpc_method_handler(servicer.Generate)
            server.add_generic_rpc_handlers(  # type: ignore[attr-defined]
                (grpc.method_handlers_generic_handler(service, {method: handler}),)
            )

        return [(add, Blocks())]

    entered, go_on = threading.Event(), threading.Event()
    loop = LoopThread()
    library, wire = registry.server_library("grpcio"), registry.protocol("openengine")
    target = InprocessTarget(library, wire, loop, timeout=0.3, plan=TargetPlan(servicers=servicers)).start()
    stream = target.generate(Request("r"))
    assert entered.wait(10)
    with pytest.raises(LoopStuck):
        target.close()
    assert stream.status is None
    with pytest.raises(RuntimeError):
        target.engine.submit("late", None, None)  # type: ignore[arg-type]
    go_on.set()
    loop.close()


BLOCKING = """
import time
import grpc
from pytest_grpc_conformance import registry

BLOCKED = []

class Blocks:
    def __init__(self, reference):
        self._reference = reference

    def __getattr__(self, name):
        return getattr(self._reference, name)

    async def Generate(self, request, context):
        if not BLOCKED:
            BLOCKED.append(True)
            time.sleep(3600)
        async for message in self._reference.Generate(request, context):
            yield message

def servicers(engine):
    made = registry.protocol("smg").servicers(engine)
    return [(one.add, Blocks(one.servicer)) for one in made]
"""
BLOCKED_CASES = """
import pytest
from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.script import one_by_one, script, tokens
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.protocols.base import Request

@requirement("SMG-GEN-016")
@pytest.mark.parametrize("number", range(4), ids=lambda n: f"n={n}")
def test_streams(grpc_target, number):
    asserts.ended(grpc_target.play(script(one_by_one(tokens(3))), Request("r")))
"""


def test_servicer_that_blocks_the_loop_costs_one_case(tmp_path: Path) -> None:
    project(tmp_path, blocking=BLOCKING, test_mine=BLOCKED_CASES)
    chosen = ("--grpc-target", "blocking:servicers", "--grpc-protocol", "smg", "--grpc-server", "grpcio")
    result = run_pytest(tmp_path, *chosen, "--grpc-timeout-scale", "0.05")
    assert result.code == 1
    assert "4 results: 3 passed, 1 broken" in result.out, result.text
    assert "Traceback" not in result.err


LEFTOVERS = """
import gc
import os
import threading

import pytest

LISTENERS = set()

def pytest_runtest_teardown(item):
    from pathlib import Path
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            inodes.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    for table, family in (("tcp", 4), ("tcp6", 6)):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                LISTENERS.add(f"{table} {fields[1].partition(':')[0]}")

@pytest.hookimpl(wrapper=True)
def pytest_unconfigure(config):
    yield
    gc.collect()
    print("threads", sorted(t.name for t in threading.enumerate() if t is not threading.main_thread()))
    print("listeners", sorted(LISTENERS))
"""
LOOPBACK = {"tcp 0100007F", "tcp6 0000000000000000FFFF00000100007F", "tcp6 00000000000000000000000001000000"}


@LIBRARIES
def test_run_of_shipped_cases_leaves_nothing_and_listens_on_the_loopback_only(tmp_path: Path, library: str) -> None:
    project(tmp_path, watcher=LEFTOVERS)
    plugins = ("grpc_conformance", "watcher")
    chosen = ("-k", "test_first_token.py", "--grpc-server", library, "-s", "-W", "error")
    result = run_pytest(
        tmp_path,
        *chosen,
        "--pyargs",
        "pytest_grpc_conformance.cases",
        plugins=plugins,
        changes={"PYTHONPATH": str(tmp_path)},
    )
    last = {line.partition(" ")[0]: line.partition(" ")[2] for line in result.out.splitlines()[-2:]}
    assert last["threads"] == "[]", result.text
    listeners = set(ast.literal_eval(last["listeners"]))
    assert listeners
    assert listeners <= LOOPBACK
    for word in ("ResourceWarning", "never awaited", "Task was destroyed", "Exception ignored"):
        assert word not in result.text


def test_served_engine_listens_on_the_loopback_only_unless_told(tmp_path: Path) -> None:
    for host, shown in (("127.0.0.1", "0100007F"), ("0.0.0.0", "00000000")):
        with served(tmp_path, "smg", "--host", host) as (address, process):
            port = f"{int(address.rpartition(':')[2]):04X}"
            tables = "".join(Path(f"/proc/{process.pid}/net/{table}").read_text() for table in ("tcp", "tcp6"))
            listening = [line.split()[1] for line in tables.splitlines() if line.split()[3:4] == ["0A"]]
            mine = [where.partition(":")[0] for where in listening if where.endswith(f":{port}")]
            assert mine
            assert all(where.endswith(shown) for where in mine), (host, mine)
