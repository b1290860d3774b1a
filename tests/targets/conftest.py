"""An event loop in a thread, which is closed after the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_grpc_conformance.targets.loop_thread import LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()
