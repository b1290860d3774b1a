"""``--grpc-address``: a server that somebody else runs, reached, tested, and left alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import project, report, run_pytest
from tests.targets.live import served
from tests.targets.test_launched_target import CASES, PLUGINS, WORKERS


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("served"), "smg", "--server", "pygrpc-native") as (address, process):
        yield address
        assert process.poll() is None, "it still runs after everything"


@WORKERS
def test_running_server_is_tested_and_left_running(tmp_path: Path, address: str, workers: tuple[str, ...]) -> None:
    project(tmp_path, test_mine=CASES)
    chosen = ("--grpc-address", address, "--grpc-protocol", "smg", "--grpc-report", "report.json")
    result = run_pytest(tmp_path, *chosen, *workers, plugins=PLUGINS)
    assert result.code == 0, result.text
    data = report(tmp_path / "report.json")
    assert data["targets"] == [{"name": "address", "version": address}]
    assert [entry["verdict"] for entry in data["results"]].count("passed") == 2
    destructive = next(entry for entry in data["results"] if entry["case_id"] == "mine/destructive[smg]")
    assert destructive["verdict"] == "not applicable"
    assert destructive["reason"] == "it could harm a server that other cases or other people use [destructive]"


def unreachable() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@WORKERS
def test_address_where_nothing_listens_ends_the_run_in_one_line(tmp_path: Path, workers: tuple[str, ...]) -> None:
    project(tmp_path, test_mine=CASES)
    nobody = unreachable()
    result = run_pytest(tmp_path, "--grpc-address", nobody, "--grpc-protocol", "smg", *workers, plugins=PLUGINS)
    assert result.code == 1
    assert result.text.strip() == f"ERROR: nothing answers at {nobody}: Connection refused"


def test_host_that_does_not_exist_ends_the_run_in_one_line(tmp_path: Path) -> None:
    project(tmp_path, test_mine=CASES)
    result = run_pytest(tmp_path, "--grpc-address", "no-such-host.invalid:1", "--grpc-protocol", "smg")
    assert result.code == 1
    assert len(result.text.strip().splitlines()) == 1
    assert result.text.startswith("ERROR: nothing answers at no-such-host.invalid:1: ")


def test_server_of_another_protocol_is_told_from_one_that_fails(tmp_path: Path, address: str) -> None:
    project(tmp_path, test_mine=CASES)
    result = run_pytest(tmp_path, "--grpc-address", address, "--grpc-protocol", "openengine")
    assert result.code == 1
    assert len(result.text.strip().splitlines()) == 1
    assert "does not answer as a OpenEngine v1 server (UNIMPLEMENTED" in result.text
    assert "is --grpc-protocol right?" in result.text


def test_listener_that_speaks_no_http2_ends_the_run_in_time(tmp_path: Path) -> None:
    project(tmp_path, test_mine=CASES)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        chosen = ("--grpc-address", address, "--grpc-protocol", "smg", "--grpc-timeout-scale", "0.1")
        result = run_pytest(tmp_path, *chosen)
    assert result.code == 1
    assert f"{address} does not answer as a SMG TensorRT-LLM server (DEADLINE_EXCEEDED" in result.text
