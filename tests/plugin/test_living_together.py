"""The plugin beside others that many projects have: each works as it does alone."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.plugin.echo import ECHO, FIXTURES
from tests.running import project, run_cli, run_pytest

QUIET = ("-W", "ignore:The configuration option")
SYNC_SERVICER = FIXTURES.replace("echo.Echo()", "echo.SyncEcho()")
PYTEST_GRPC_TEST = (
    SYNC_SERVICER
    + """
def test_call(grpc_stub):
    assert grpc_stub.Call(b"hello") == b"sync hello"
    assert list(grpc_stub.Count(b"2")) == [b"0", b"1"]

def test_server(grpc_server, grpc_addr, grpc_channel, grpc_interceptors):
    assert grpc_addr.startswith("localhost:")
    assert grpc_interceptors is None
    print("server", type(grpc_server).__module__, type(grpc_server).__name__)

@pytest.fixture(scope="module")
def of_module_scope(grpc_stub):
    return grpc_stub.Call(b"module")

def test_module_scope(of_module_scope):
    assert of_module_scope == b"sync module"
"""
)


@pytest.mark.parametrize(
    "options", [(), ("--grpc-fake-server",), ("--grpc-max-workers", "3")], ids=lambda o: "".join(o)
)
def test_users_of_pytest_grpc_keep_their_fixtures(tmp_path: Path, options: tuple[str, ...]) -> None:
    project(tmp_path, echo=ECHO, test_echo=PYTEST_GRPC_TEST)
    arguments = ("-v", "-s", "-rA", *options)
    with_ours = run_pytest(tmp_path, *arguments, plugins=("grpc_conformance", "pytest_grpc"))
    without = run_pytest(tmp_path, *arguments, plugins=("pytest_grpc",))
    assert without.results() == with_ours.results() == "3 passed", with_ours.text
    shown = [[line for line in ran.lines if re.search("PASSED|server", line)] for ran in (with_ours, without)]
    assert shown[0] == shown[1]


def test_users_of_pytest_grpc_get_our_fixtures_by_naming_them(tmp_path: Path) -> None:
    test = SYNC_SERVICER + "def test_call(grpc_server, grpc_stub):\n    assert grpc_stub.Call(b'a') == b'sync a'\n"
    plugins = 'pytest_plugins = ["pytest_grpc_conformance.fixtures.server"]\n'
    project(tmp_path, echo=ECHO, test_echo=test, conftest=plugins)
    for order in (("grpc_conformance", "pytest_grpc"), ("pytest_grpc", "grpc_conformance")):
        result = run_pytest(tmp_path, "-v", plugins=order)
        assert result.results() == "2 passed", result.text
        assert "test_call[grpcio]" in result.out
        assert "test_call[pygrpc-native]" in result.out


CALLS = """
@pytest.mark.parametrize("number", range(4))
def test_call(grpc_stub, number):
    assert grpc_stub.Call(b"x", timeout=5) == b"sync x"
"""


@pytest.mark.parametrize(
    ("plugins", "arguments"),
    [
        pytest.param(("xdist",), ("-n", "2"), id="xdist"),
        pytest.param(("randomly",), (), id="randomly"),
        pytest.param(("timeout",), ("--timeout", "30"), id="timeout"),
        pytest.param(("asyncio",), ("-o", "asyncio_mode=auto"), id="asyncio=auto"),
        pytest.param(("asyncio", "anyio", "xdist", "randomly", "timeout"), ("-n", "2"), id="all-at-once"),
    ],
)
def test_server_fixture_works_beside_other_plugins(
    tmp_path: Path, plugins: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    project(tmp_path, echo=ECHO, test_echo=SYNC_SERVICER + CALLS)
    result = run_pytest(tmp_path, "-W", "error", *QUIET, *arguments, plugins=("grpc_conformance", *plugins))
    assert result.results() == "8 passed", result.text


def test_test_that_runs_into_its_timeout_leaves_a_working_server_to_the_next(tmp_path: Path) -> None:
    test = """
import threading

OVER = threading.Event()

class Hangs(echo.SyncEcho):
    def Call(self, request, context):
        OVER.wait(30)

class TestHangs:
    @pytest.fixture
    def grpc_servicer(self):
        yield Hangs()
        OVER.set()

    @pytest.mark.timeout(1)
    def test_hangs(self, grpc_stub):
        grpc_stub.Call(b"x")
"""
    project(tmp_path, echo=ECHO, test_echo=SYNC_SERVICER + test + CALLS)
    result = run_pytest(tmp_path, "--grpc-server", "grpcio", plugins=("grpc_conformance", "timeout"))
    assert result.results() == "1 failed, 4 passed", result.text
    assert "Timeout (>1.0s)" in result.out


def test_conformance_case_that_runs_into_its_timeout_is_broken(tmp_path: Path) -> None:
    case = """
import threading
import pytest
from pytest_grpc_conformance.marker import requirement

@requirement("OE-GEN-018")
@pytest.mark.timeout(1)
def test_hangs(grpc_target):
    threading.Event().wait(30)
"""
    project(tmp_path, test_mine=case)
    result = run_pytest(tmp_path, "--grpc-server", "grpcio", plugins=("grpc_conformance", "timeout"))
    assert result.code == 1
    assert "1 result: 1 broken" in result.out


def test_cases_run_whatever_the_configuration_of_the_project_is(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\n"
        'addopts = "--strict-markers --strict-config -k nothing_of_this_name"\n'
        'asyncio_mode = "auto"\n'
        'filterwarnings = ["error"]\n'
        "xfail_strict = true\n"
        'python_files = ["check_*.py"]\n'
        'python_functions = ["check_*"]\n'
    )
    (tmp_path / "test_mine.py").write_text("raise RuntimeError('not a case')\n")
    # Every plugin that is installed, as users have them; the shipped case that is known longest.
    result = run_cli(
        tmp_path,
        "run",
        "-k",
        "first_token_arrives_while_the_second",
        "-p",
        "no:cacheprovider",
        changes={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""},
    )
    assert result.code == 0, result.text
    assert re.search(r"\b4 passed, \d+ deselected", result.out)
    assert "4 results: 4 passed" in result.out
    assert sorted(os.listdir(tmp_path)) == ["pyproject.toml", "test_mine.py"]
