"""An option that cannot be used ends the run before anything is built: one line, exit code 4, also under xdist."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_grpc_conformance.targets.plan import BadPlan, load_plan, try_out
from tests.running import project, run_cli, run_pytest

PLANS = """
from pytest_grpc_conformance.targets.plan import TargetPlan

def number(engine): return 5
def nothing(engine): return None
def empty(engine): return []
def wrong_pairs(engine): return [("add", object())]
def raises(engine): raise KeyError("boom")
def makes_a_wrong_call(engine): return [(print, len(engine))]
async def is_async(engine): return []
async def yields_async(engine): yield 1
def async_servicer(engine): return [(print, is_async(engine))]
def leaves(engine): raise SystemExit("enough")
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
    "address-empty": (["--grpc-address", "", *SMG], ["--grpc-address '' is not host:port"]),
    "address-no-host": (["--grpc-address", ":50051", *SMG], ["--grpc-address ':50051' is not host:port"]),
    "address-url": (["--grpc-address", "http://h:1", *SMG], ["--grpc-address 'http://h:1' is not host:port"]),
    "address-socket": (["--grpc-address", "unix:/a", *SMG], ["--grpc-address 'unix:/a' is not host:port"]),
    "address-port-0": (["--grpc-address", "h:0", *SMG], ["--grpc-address 'h:0' is not host:port"]),
    "address-port-digits": (["--grpc-address", "h:\uff15", *SMG], ["is not host:port"]),
    "address-line": (["--grpc-address", "h:5\n", *SMG], ["--grpc-address 'h:5\\n' is not host:port"]),
    "address-no-ipv6": (["--grpc-address", "[12]:5", *SMG], ["--grpc-address '[12]:5' is not host:port"]),
    "address-label": (["--grpc-address", f"{'h' * 64}:5", *SMG], ["is not host:port"]),
    "address-dots": (["--grpc-address", "a..b:5", *SMG], ["--grpc-address 'a..b:5' is not host:port"]),
    "command-empty": (["--grpc-command", "", *SMG], ["--grpc-command is empty; give the command that starts"]),
    "command-blank": (["--grpc-command", " ", *SMG], ["--grpc-command is empty"]),
    "command-nothing": (["--grpc-command", "''", *SMG], ["--grpc-command is empty"]),
    "command-open-quote": (
        ["--grpc-command", "serve 'it", *SMG],
        ['cannot read --grpc-command "serve \'it": No closing quotation'],
    ),
    "scale-empty": (["--grpc-timeout-scale", ""], ["--grpc-timeout-scale '' is not a number above 0"]),
    "scale-too-large": (["--grpc-timeout-scale", "1e9"], ["--grpc-timeout-scale '1e9' is more than 100000"]),
    "ready-too-large": (["--grpc-ready-timeout", "1e300"], ["--grpc-ready-timeout '1e300' is more than 100000"]),
    "report-empty": (["--grpc-report", ""], ["--grpc-report '' is a folder; name a file in it"]),
    "report-folder": (["--grpc-report", "."], ["--grpc-report '.' is a folder"]),
    "report-nowhere": (["--grpc-report", "no/such.json"], ["--grpc-report no/such.json: the folder no does not exist"]),
    "report-too-long": (["--grpc-report", "a" * 300], ["--grpc-report 'aaa", "File name too long"]),
    "target-empty": (["--grpc-target", "", *SMG], ["--grpc-target: '' is not of the form module:factory"]),
    "target-async": (["--grpc-target", "plans:is_async", *SMG], ["a factory must be a plain function, not an async"]),
    "target-async-servicer": (["--grpc-target", "plans:async_servicer", *SMG], ["a servicer must be an object, not"]),
    "target-bad-module": (
        ["--grpc-target", "broken:x", *SMG],
        ["'broken' cannot be imported", "at import, broken.py:2"],
    ),
    "target-number": (
        ["--grpc-target", "plans:number", *SMG],
        ["must return a list of (add_to_server, servicer)", "5"],
    ),
    "target-raises": (["--grpc-target", "plans:raises", *SMG], ["plans:raises fails (KeyError: 'boom', plans.py:8)"]),
}
WRONG_TARGETS = {
    "no-colon": ("plans", "'plans' is not of the form module:factory"),
    "no-module-name": (":x", "':x' is not of the form module:factory"),
    "no-module": ("no_such:x", "'no_such' cannot be imported (ModuleNotFoundError: No module named 'no_such')"),
    "module-exits": ("exits:x", "'exits' cannot be imported (SystemExit: 7, exits.py:2)"),
    "no-attribute": ("plans:missing", "plans has no missing"),
    "no-inner-attribute": ("plans:plan.missing", "plans has no plan.missing"),
    "no-function": (
        "plans:not_a_function",
        "plans:not_a_function is neither a TargetPlan nor a function from an engine",
    ),
    "returns-nothing": ("plans:nothing", "must return a list of (add_to_server, servicer), not None"),
    "returns-no-servicer": ("plans:empty", "must return at least one servicer"),
    "returns-wrong-pairs": (
        "plans:wrong_pairs",
        "must return pairs (add_to_server, servicer) or registrations, not ('add'",
    ),
    "raises-inside": (
        "plans:makes_a_wrong_call",
        "fails (TypeError: object of type 'GatedEngine' has no len(), plans.py:9)",
    ),
    "is-async": ("plans:is_async", "a factory must be a plain function, not an async one"),
    "yields-async": ("plans:yields_async", "a factory must be a plain function, not an async one"),
    "async-servicer": ("plans:async_servicer", "a servicer must be an object, not what an async function returns"),
    "exits": ("plans:leaves", "plans:leaves fails (SystemExit: enough, plans.py:13)"),
    "plan-returns-number": ("plans:plan", "must return a list of (add_to_server, servicer), not 5"),
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


@pytest.mark.parametrize("name", WRONG_TARGETS)
def test_target_that_cannot_be_used_is_told_in_one_line(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, told = WRONG_TARGETS[name]
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(folder))])
    with pytest.raises(BadPlan) as caught:
        try_out(reference, load_plan(reference))
    for module in ("plans", "exits"):
        sys.modules.pop(module, None)
    assert told in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


UNDER_XDIST = """
unknown-server no-protocol target-raises target-async target-empty command-empty command-open-quote address-empty
address-label scale-too-large report-folder
"""


@pytest.mark.parametrize("name", UNDER_XDIST.split())
def test_wrong_option_is_told_in_one_line_under_xdist(folder: Path, name: str) -> None:
    check(folder, *WRONG[name], "-n", "2")


@pytest.mark.parametrize("name", ["unknown-protocol", "target-number"])
def test_wrong_option_is_told_by_the_command_too(folder: Path, name: str) -> None:
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
