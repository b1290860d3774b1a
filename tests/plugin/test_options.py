"""An option that cannot be used ends the run before anything is built: one line, exit code 4, also under xdist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import project, run_pytest

PLANS = """
from pytest_grpc_conformance.targets.plan import TargetPlan

def number(engine): return 5
def nothing(engine): return None
def empty(engine): return []
def wrong_pairs(engine): return [("add", object())]
def raises(engine): raise KeyError("boom")
def makes_a_wrong_call(engine): return [(print, len(engine))]
not_a_function = 3
plan = TargetPlan(servicers=number)
"""
CASE = """
from pytest_grpc_conformance.marker import requirement

@requirement("OE-GEN-018", "SMG-GEN-016")
def test_case(grpc_target):
    raise SystemError("ran")
"""
SMG = ("--grpc-protocol", "smg")
WRONG = {
    "unknown-server": (["--grpc-server", "grpcoi"], ["'grpcoi'", "did you mean grpcio?", "grpcio, pygrpc-native"]),
    "unknown-protocol": (["--grpc-protocol", "sgm"], ["'sgm'", "did you mean smg?", "openengine, smg"]),
    "unknown-required": (["--grpc-require", "nativ"], ["unknown server 'nativ'", "grpcio, pygrpc-native"]),
    "required-left-out": (
        ["--grpc-require", "pygrpc-native", "--grpc-server", "grpcio"],
        ["--grpc-require pygrpc-native", "add --grpc-server pygrpc-native"],
    ),
    "scale-word": (["--grpc-timeout-scale", "fast"], ["--grpc-timeout-scale 'fast' is not a number above 0"]),
    "scale-zero": (["--grpc-timeout-scale", "0"], ["--grpc-timeout-scale '0' is not a number above 0"]),
    "scale-nan": (["--grpc-timeout-scale", "nan"], ["--grpc-timeout-scale 'nan' is not"]),
    "scale-infinite": (["--grpc-timeout-scale", "inf"], ["--grpc-timeout-scale 'inf' is not"]),
    "ready-negative": (["--grpc-ready-timeout=-1"], ["--grpc-ready-timeout '-1' is not a number above 0"]),
    "two-ways": (
        ["--grpc-command", "true", "--grpc-address", "localhost:1", *SMG],
        ["--grpc-command and --grpc-address exclude each other"],
    ),
    "three-ways": (
        ["--grpc-command", "true", "--grpc-address", "localhost:1", "--grpc-target", "plans:number"],
        ["--grpc-target and --grpc-command and --grpc-address exclude each other"],
    ),
    "no-protocol": (["--grpc-target", "plans:number"], ["--grpc-target speaks one protocol", "openengine, smg"]),
    "two-protocols": (
        ["--grpc-address", "localhost:1", *SMG, "--grpc-protocol", "openengine"],
        ["--grpc-address speaks one protocol"],
    ),
    "server-with-address": (
        ["--grpc-address", "localhost:1", *SMG, "--grpc-server", "grpcio"],
        ["--grpc-address brings its own server"],
    ),
    "no-port": (["--grpc-address", "localhost", *SMG], ["'localhost' is not host:port"]),
    "bad-port": (["--grpc-address", "localhost:70000", *SMG], ["'localhost:70000' is not host:port"]),
    "bare-ipv6": (["--grpc-address", "::1", *SMG], ["is not host:port (IPv6 hosts in brackets)"]),
    "target-without-colon": (["--grpc-target", "plans", *SMG], ["'plans' is not of the form module:factory"]),
    "target-no-module": (["--grpc-target", "no_such:x", *SMG], ["'no_such' cannot be imported", "No module named"]),
    "target-bad-module": (
        ["--grpc-target", "broken:x", *SMG],
        ["'broken' cannot be imported", "at import, broken.py:2"],
    ),
    "target-module-exits": (["--grpc-target", "exits:x", *SMG], ["'exits' cannot be imported (SystemExit: 7"]),
    "target-no-attribute": (["--grpc-target", "plans:missing", *SMG], ["plans has no missing"]),
    "target-no-function": (["--grpc-target", "plans:not_a_function", *SMG], ["plans:not_a_function is neither a"]),
    "target-number": (
        ["--grpc-target", "plans:number", *SMG],
        ["must return a list of (add_to_server, servicer)", "5"],
    ),
    "target-nothing": (["--grpc-target", "plans:nothing", *SMG], ["must return a list", "None"]),
    "target-empty": (["--grpc-target", "plans:empty", *SMG], ["at least one servicer"]),
    "target-pairs": (["--grpc-target", "plans:wrong_pairs", *SMG], ["must return pairs (add_to_server, servicer)"]),
    "target-raises": (["--grpc-target", "plans:raises", *SMG], ["plans:raises fails (KeyError: 'boom', plans.py:8)"]),
    "target-type-error": (["--grpc-target", "plans:makes_a_wrong_call", *SMG], ["fails (TypeError", "plans.py:9"]),
    "target-plan": (["--grpc-target", "plans:plan", *SMG], ["must return a list"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(
        tmp_path_factory.mktemp("options"),
        plans=PLANS,
        broken="\nraise RuntimeError('at import')\n",
        exits="import sys\nsys.exit(7)\n",
        test_mine=CASE,
    )


def check(folder: Path, arguments: list[str], told: list[str], *more: str) -> None:
    result = run_pytest(folder, *arguments, *more, plugins=("grpc_conformance", "xdist"))
    assert result.code == 4, result.text
    lines = [line for line in result.lines if line.strip()]
    assert len(lines) == 1, result.text
    assert lines[0].startswith("ERROR: ")
    for words in told:
        assert words in lines[0]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_option_is_told_in_one_line(folder: Path, name: str) -> None:
    check(folder, *WRONG[name])


@pytest.mark.parametrize("name", ["unknown-server", "scale-word", "no-protocol", "target-bad-module", "target-raises"])
def test_wrong_option_is_told_in_one_line_under_xdist(folder: Path, name: str) -> None:
    check(folder, *WRONG[name], "-n", "2")


@pytest.mark.parametrize("name", ["unknown-protocol", "target-number"])
def test_wrong_option_is_told_by_the_command_too(folder: Path, name: str) -> None:
    from tests.running import run_cli

    arguments, told = WRONG[name]
    result = run_cli(folder, "run", *arguments, changes={"PYTEST_PLUGINS": "pytest_grpc_conformance.plugin"})
    assert result.code == 4
    assert [line for line in result.lines if line.strip()] == [result.err.strip()]
    assert all(words in result.err for words in told)


def test_every_option_is_in_the_help_of_pytest(tmp_path: Path) -> None:
    result = run_pytest(tmp_path, "--help")
    group = result.out.partition("gRPC conformance:")[2].partition("\n\n")[0]
    named = {word.rstrip("=") for word in group.split() if word.startswith("--grpc-")}
    options = "server protocol require target command address timeout-scale ready-timeout update-golden report"
    assert {f"--grpc-{name}" for name in options.split()} <= {word.partition("=")[0] for word in named}
