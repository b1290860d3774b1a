"""What a failing case shows: everything that matters on one screen, nothing that a server could abuse, and how to
run just this case again."""

from __future__ import annotations

import os
import re
import shlex
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

from pytest_grpc_conformance.judging import screen
from pytest_grpc_conformance.reports.document import Failure, Result
from pytest_grpc_conformance.verdict import Verdict
from tests.running import Ran, project, report, run, run_cli, run_pytest

ROOT = Path(__file__).resolve().parents[2]
FAULT = "tests.faults.faults_of_first_token:gathers_the_whole_generation"
PLANTED = ("--grpc-target", f"{FAULT}.openengine", "--grpc-protocol", "openengine", "--grpc-timeout-scale", "0.05")
SHIPPED = "first_token_arrives_while_the_second_is_held"
CHANGES = {"PYTHONPATH": str(ROOT), "PYTEST_PLUGINS": "pytest_grpc_conformance.plugin,xdist.plugin"}
"""What the command needs, which finds its plugins by itself: the faults, and no plugins but these."""


def screens(out: str) -> dict[str, list[str]]:
    """The lines under each failure's headline."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in out.partition("= FAILURES =")[2].splitlines()[1:]:
        headline = re.fullmatch(r"_+ (\S+) _+", line)
        if headline:
            current = found.setdefault(headline[1], [])
        elif line.startswith("==="):
            break
        elif re.match(r"-{3,} Captured ", line):
            current = []
        else:
            current.append(line)
    return found


def fits_a_screen(lines: list[str]) -> None:
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 160


def command_of(lines: list[str]) -> str:
    """The command that a failure's last lines say, as it would be copied."""
    at = next(number for number, line in enumerate(lines) if line.startswith("reproduce"))
    return "\n".join(lines[at:]).removeprefix("reproduce").strip()


def run_again(command: str, folder: Path) -> Ran:
    """The command in a shell, as a user types it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return run(["sh", "-c", f"{command} -p no:cacheprovider"], folder, {**CHANGES, "PATH": path})


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    folder = tmp_path_factory.mktemp("planted")
    arguments = ("-k", SHIPPED, "--grpc-server", "grpcio", "-p", "no:cacheprovider", "--grpc-report", "report.json")
    return folder, run_cli(folder, "run", *PLANTED, *arguments, changes=CHANGES)


def test_failure_has_all_its_parts_on_one_screen(planted: tuple[Path, Ran]) -> None:
    folder, ran = planted
    assert ran.code == 1
    ((name, lines),) = screens(ran.out).items()
    assert name == f"test_{SHIPPED}[grpcio-openengine]"
    fits_a_screen(lines)
    assert lines[0] == "a message was due, but nothing came"
    assert any(line.startswith("requirement  OE-GEN-018 (SHOULD, spec): The server forwards tokens") for line in lines)
    assert "expected     a message" in lines
    assert any(re.fullmatch(r"observed     first: nothing came within 0\.5 s after 0 messages", line) for line in lines)
    assert any("released 1" in line for line in lines), "the gate's position"
    transcript = lines[lines.index("transcript") + 1 :]
    assert any("grpcio listens on 127.0.0.1:" in line for line in transcript)
    assert any(re.fullmatch(r" +\d+\.\d ms  client   first: Generate", line) for line in transcript)
    failure = report(folder / "report.json")["results"][0]["failure"]
    assert failure["problem"] == lines[0]
    assert failure["expected"] == "a message"
    assert failure["observed"].startswith("first: nothing came within 0.5 s")
    assert failure["reproduce"] == command_of(lines).replace("\\\n", "")


def test_reproduction_line_runs_just_this_case_again(planted: tuple[Path, Ran]) -> None:
    folder, ran = planted
    ((name, lines),) = screens(ran.out).items()
    again = run_again(command_of(lines), folder)
    assert again.results() == "1 failed"
    assert list(screens(again.out)) == [name]
    assert screens(again.out)[name][0] == lines[0]


CASES = """
import pytest
from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.protocols.base import Request

@requirement("OE-GEN-018", "SMG-GEN-016")
@pytest.mark.parametrize("at", [2, 20, 21], ids=["k=2", "k=20", "a b'c[d]"])
def test_number(grpc_target, at):
    asserts.equal("the number", 2, at)

@requirement("OE-GEN-018", "SMG-GEN-016")
def test_number_too(grpc_target):
    asserts.equal("the number", 2, 3)
"""


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        pytest.param(".", "test_number[pygrpc-native-smg-k=20]", id="from-above"),
        pytest.param("checks", "test_number[grpcio-openengine-a b'c[d]]", id="beside-it"),
    ],
)
def test_reproduction_line_of_a_users_own_case_tells_parameters_apart(tmp_path: Path, folder: str, name: str) -> None:
    (tmp_path / "checks").mkdir()
    project(tmp_path / "checks", test_mine=CASES)
    result = run_pytest(tmp_path / folder, "--rootdir", str(tmp_path))
    assert result.results() == "12 failed, 4 passed"
    lines = _screens_with_blanks(result.out)[name]
    again = run_again(command_of(lines), tmp_path / folder)
    assert again.results() == "1 failed", (command_of(lines), again.text)
    assert list(_screens_with_blanks(again.out)) == [name]


def _screens_with_blanks(out: str) -> dict[str, list[str]]:
    """As ``screens``, for names with blanks in them."""
    blanks = {name.replace(" ", "\0"): name for name in re.findall(r"^_+ (.* .*) _+$", out, re.MULTILINE)}
    for written, name in blanks.items():
        out = out.replace(f" {name} ", f" {written} ")
    return {blanks.get(name, name): lines for name, lines in screens(out).items()}


def test_reproduction_line_for_a_launched_server_has_its_command(tmp_path: Path) -> None:
    project(tmp_path, test_mine=CASES)
    command = f"'{sys.executable}' -m pytest_grpc_conformance.cli serve --protocol smg --grace 0"
    chosen = ("--grpc-command", command, "--grpc-protocol", "smg", "--grpc-timeout-scale", "2")
    result = run_pytest(tmp_path, *chosen, "-k", "number_too")
    ((name, lines),) = screens(result.out).items()
    assert "--grpc-timeout-scale 2" in command_of(lines)
    again = run_again(command_of(lines), tmp_path)
    assert again.results() == "1 failed", again.text
    assert list(screens(again.out)) == [name]


HOSTILE = """
import logging

import grpc

from pytest_grpc_conformance import registry

EVIL = "\\x1b[31mred\\x1b[2J\\x07\\x9b1m\\u202e\\r\\n  reproduce    echo forged\\n" + "long " * 600

class Hostile:
    async def Generate(self, request, context):
        logging.getLogger("server").error("log %s", EVIL)
        print("printed", EVIL)
        await context.abort(grpc.StatusCode.INTERNAL, EVIL)
        yield b""

def add(servicer, server):
    _, service, method = registry.protocol("smg").generate.path.split("/")
    handler = grpc.unary_stream_rpc_method_handler(servicer.Generate)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))

def servicers(engine):
    return [(add, Hostile())]
"""
HOSTILE_CASES = """
from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.protocols.base import Request

def refuse(grpc_target):
    return asserts.ended(grpc_target.generate(Request("r")))

@requirement("SMG-GEN-016")
def test_status(grpc_target):
    asserts.status(refuse(grpc_target), "OK")

@requirement("SMG-GEN-016")
def test_problem(grpc_target):
    details = refuse(grpc_target).status.details
    asserts.violation(details, details, details, evidence=details)

@requirement("SMG-GEN-016")
def test_breaks(grpc_target):
    raise ValueError(refuse(grpc_target).status.details)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_what_a_server_sends_cannot_reach_the_terminal(tmp_path: Path, workers: tuple[str, ...]) -> None:
    project(tmp_path, hostile=HOSTILE, test_mine=HOSTILE_CASES)
    chosen = ("--grpc-server", "grpcio", "--grpc-target", "hostile:servicers", "--grpc-protocol", "smg", "-rA")
    written = ("--grpc-report", "report.json", "--junitxml", "junit.xml")
    result = run_pytest(tmp_path, *chosen, *written, *workers, plugins=("grpc_conformance", "xdist"))
    assert result.code == 1
    assert "3 results: 2 failed, 1 broken" in result.out
    harmful = [character for character in result.text if not character.isprintable() and character not in "\n\t"]
    assert not harmful
    shown = screens(result.out)
    for name in ("test_status[grpcio-smg]", "test_problem[grpcio-smg]"):
        lines = shown[name]
        fits_a_screen(lines)
        assert any("\\x1b[31mred" in line for line in lines), "shown, in letters"
        assert len([line for line in lines if line.startswith("reproduce")]) == 1
        assert "forged" not in command_of(lines)
    summary = result.out.partition("= gRPC conformance")[2].partition("short test summary")[0]
    assert max(map(len, summary.splitlines())) <= 160
    texts = xml.etree.ElementTree.parse(tmp_path / "junit.xml").iter("failure")
    assert all("\x1b" not in (element.text or "") for element in texts)
    assert "\x1b" not in str(report(tmp_path / "report.json"))


def a_result(failure: Failure, *rows: str) -> Result:
    return Result("a/b[smg]", "grpcio", "smg", rows, "", Verdict.FAILED, 0.0, failure=failure)


def test_screen_keeps_within_its_bounds_whatever_the_failure_holds() -> None:
    long = "\n".join(f"line {number} " + "x" * 300 for number in range(50))
    transcript = "\n".join(f"{number:9.1f} ms  server   {'y' * 160}" for number in range(13))
    rows = ("SMG-GEN-026", "OE-ABT-022", "OE-STOP-023", "GRPC-SVC-11", "SMG-HLT-005")
    command = "pytest " + " ".join(f"--option-{number}='a b'" for number in range(20))
    lines = screen(a_result(Failure(long, long, long, transcript, command), *rows)).splitlines()
    fits_a_screen(lines)
    assert [row for row in rows if any(row in line for line in lines)] == list(rows), "every row is named"
    assert "... and 49 more lines" in lines
    assert "             ... and 46 more lines" in lines
    assert shlex.split(command_of(lines).replace("\\\n", "")) == shlex.split(command)


def test_screen_of_a_small_failure_has_no_empty_parts() -> None:
    lines = screen(a_result(Failure("it differs", "1", "2", "", "pytest a"), "SMG-GEN-016")).splitlines()
    assert lines == [
        "it differs",
        "",
        "requirement  SMG-GEN-016 (SHOULD, spec): The server streams tokens as they are produced.",
        "             trtllm_service.proto, service comment (delta mode)",
        "expected     1",
        "observed     2",
        "reproduce    pytest a",
    ]
