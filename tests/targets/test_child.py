"""Parts of cases in a process of their own: whatever happens there, the case gets to know, and lives."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_grpc_conformance.servers.grpcio import GrpcioAio
from pytest_grpc_conformance.targets import child
from pytest_grpc_conformance.targets.library import ECHO, LibraryTarget
from pytest_grpc_conformance.targets.loop_thread import LoopThread


@pytest.fixture
def target(loop: LoopThread) -> Iterator[LibraryTarget]:
    target = LibraryTarget(GrpcioAio(), GrpcioAio(), loop, timeout=10)
    yield target
    target.close()


def calls_once(target: LibraryTarget) -> list[Any]:
    outcome = target.serve({"Echo": ECHO}).call("Echo", b"ask")
    return [outcome.code, outcome.messages[0].decode(), os.getpid()]


def kills_itself(target: LibraryTarget) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def raises(target: LibraryTarget) -> None:
    raise ValueError("boom \x1b[31m")


def never_ends(target: LibraryTarget) -> None:
    threading.Event().wait()


def test_result_and_exit_code_come_back(target: LibraryTarget) -> None:
    ended = target.in_child(calls_once)
    assert ended.code == 0
    assert ended.result[:2] == ["OK", "ask"]
    assert ended.result[2] != os.getpid()


def test_signal_is_a_negative_exit_code(target: LibraryTarget) -> None:
    ended = target.in_child(kills_itself)
    assert (ended.code, ended.result) == (-signal.SIGSEGV, None)


def test_exception_is_told_in_harmless_lines(target: LibraryTarget) -> None:
    ended = target.in_child(raises)
    assert (ended.code, ended.result) == (1, None)
    assert "ValueError: boom \\x1b[31m" in ended.tail


def test_process_that_does_not_end_is_killed(target: LibraryTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "START", 0.0)
    ended = child.run(never_ends, "grpcio", None, 1.0)
    assert (ended.code, ended.result) == (None, None)
