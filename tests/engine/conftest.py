"""Loops and an engine that are closed after the test, and a check that no engine leaves a thread behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from engine_loops import ManualLoop, ThreadLoop, finish

from pytest_grpc_conformance.engines.gated import GatedEngine


@pytest.fixture
def manual_loop() -> Iterator[ManualLoop]:
    loop = ManualLoop()
    yield loop
    if not loop.is_closed():
        finish(loop)


@pytest.fixture
def thread_loops() -> Iterator[Callable[[], ThreadLoop]]:
    """Makes loops that run in threads."""
    loops: list[ThreadLoop] = []

    def make() -> ThreadLoop:
        loops.append(ThreadLoop())
        return loops[-1]

    yield make
    for loop in loops:
        loop.close()


@pytest.fixture
def thread_loop(thread_loops: Callable[[], ThreadLoop]) -> ThreadLoop:
    return thread_loops()


@pytest.fixture
def engine() -> Iterator[GatedEngine]:
    with GatedEngine() as engine:
        yield engine


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("gated-engine")]
    assert not left
