"""``--grpc-command``: a server process that the run starts, watches, and stops."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest

from tests.running import Ran, project, pytest_command, report, run_pytest
from tests.targets.live import appears, ends, is_running, serve_command, started

PLUGINS = ("grpc_conformance", "xdist")
WORKERS = pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
CASES = """
import pytest
from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.marker import LIFECYCLE, SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request

@requirement("SMG-GEN-016")
@pytest.mark.parametrize("count", [1, 5], ids=lambda count: f"n={count}")
def test_streams(grpc_target, count):
    collected = asserts.ended(grpc_target.generate(Request("r", max_tokens=count)))
    asserts.equal("the number of tokens", count, len(collected.sequences[0].tokens))

@requirement("SMG-GEN-016", needs=(SCRIPTED,))
def test_scripted(grpc_target):
    raise SystemError("ran")

@requirement("SMG-GEN-016", needs=(LIFECYCLE,))
def test_lifecycle(grpc_target):
    raise SystemError("ran")

@requirement("SMG-GEN-016")
@pytest.mark.destructive
def test_destructive(grpc_target):
    raise SystemError("ran")

@requirement("SMG-GEN-016")
def test_reaches_for_the_engine(grpc_target):
    grpc_target.prepare("r", None)
"""


def recorded(command: str) -> str:
    """A command that leaves the id of its process in the file ``pid``."""
    return shlex.join(["sh", "-c", f"echo $$ > pid; {command}"])


SERVER = recorded(f"exec {shlex.join(serve_command('smg', '--grace', '0'))}")


def run(folder: Path, command: str, *arguments: str, cases: str = CASES) -> Ran:
    project(folder, test_mine=cases)
    chosen = ("--grpc-command", command, "--grpc-protocol", "smg", "--grpc-report", "report.json")
    return run_pytest(folder, *chosen, *arguments, plugins=PLUGINS)


def verdicts(folder: Path) -> dict[str, str]:
    results = report(folder / "report.json")["results"]
    return {entry["case_id"].removeprefix("mine/"): entry["verdict"] for entry in results}


@WORKERS
def test_launched_server_is_tested_and_then_gone(tmp_path: Path, workers: tuple[str, ...]) -> None:
    result = run(tmp_path, SERVER, *workers)
    assert result.code == 0, result.text
    assert verdicts(tmp_path) == {
        "streams[smg-n=1]": "passed",
        "streams[smg-n=5]": "passed",
        "scripted[smg]": "not applicable",
        "lifecycle[smg]": "not applicable",
        "destructive[smg]": "not applicable",
        "reaches_for_the_engine[smg]": "not applicable",
    }
    assert re.search(r"command 127\.0\.0\.1:\d+", result.out)
    assert "n/a  command: the engine of this target cannot be scripted or gated [needs-scripted] (1 case)" in result.out
    assert not is_running(int((tmp_path / "pid").read_text()))


NEVER_READY = {
    "not-found": (
        "no-such-program --serve",
        "ERROR: cannot start 'no-such-program': No such file or directory\n",
    ),
    "exits": (recorded("echo one; echo '\033[1mtwo' >&2; exit 7"), "ended with exit code 7 before it was ready"),
    "silent": (recorded("exec sleep 300"), "was not ready within 1 s (no line 'READY address=...')"),
    "other-protocol": (
        recorded(f"exec {shlex.join(serve_command('openengine'))}"),
        "does not answer as a SMG TensorRT-LLM server (UNIMPLEMENTED: Method not found!); is --grpc-protocol right?\n",
    ),
}


@pytest.mark.parametrize("name", [name for name in NEVER_READY if name != "exits"])
def test_command_that_never_serves_ends_the_run_with_its_own_words(tmp_path: Path, name: str) -> None:
    command, told = NEVER_READY[name]
    seconds = "30" if name == "other-protocol" else "1"
    check_never_served(tmp_path, run(tmp_path, command, "--grpc-ready-timeout", seconds), told)


def test_command_that_never_serves_ends_the_run_under_xdist_too(tmp_path: Path) -> None:
    command, told = NEVER_READY["exits"]
    result = run(tmp_path, command, "-n", "2")
    check_never_served(tmp_path, result, told)
    assert result.text.rstrip().endswith("; its last output:\n    one\n    \\x1b[1mtwo")


def check_never_served(folder: Path, result: Ran, told: str) -> None:
    assert result.code == 1, result.text
    assert told in result.err
    assert result.out == "", "no header, no case"
    assert "Traceback" not in result.err
    assert len(result.lines) <= 15
    if (folder / "pid").exists():
        assert ends(int((folder / "pid").read_text())), "the process, and its group, are gone"


DYING = """
import os
import signal
from pathlib import Path
import pytest
from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.protocols.base import Request

@requirement("SMG-GEN-016")
def test_a_before(grpc_target):
    pass

@requirement("SMG-GEN-016")
def test_b_kills(grpc_target):
    pid = int(Path("pid").read_text())
    os.kill(pid, signal.SIGKILL)
    # Its first thread may be gone before the others, and is not waited for until then.
    while Path(f"/proc/{pid}/stat").exists() and (
        ") Z " not in Path(f"/proc/{pid}/stat").read_text() or len(os.listdir(f"/proc/{pid}/task")) > 1
    ):
        pass
    Path("killed").write_text("yes")

@requirement("SMG-GEN-016")
@pytest.mark.parametrize("number", range(40), ids=lambda n: f"n={n}")
def test_c_later(grpc_target, number):
    if Path("killed").exists():
        return
    asserts.ended(grpc_target.generate(Request("r")))
"""


def test_server_that_dies_breaks_the_cases_after_it_and_is_told_of_once(tmp_path: Path) -> None:
    result = run(tmp_path, SERVER, cases=DYING)
    assert result.code == 1
    found = verdicts(tmp_path)
    assert found.pop("a_before[smg]") == "passed"
    assert found.pop("b_kills[smg]") == "passed"
    assert len(found) == 40
    assert set(found.values()) == {"broken"}
    summary = result.out.partition("= gRPC conformance")[2]
    story = f"the command {SERVER!r} was ended by SIGKILL during the run"
    broken = [line for line in summary.splitlines() if line.startswith("BROKEN")]
    assert len(broken) == 1
    assert broken[0].startswith("BROKEN  command/smg 40 cases from mine/c_later[smg-n=0] on: TargetBroken: the command")
    notes = report(tmp_path / "report.json")["notes"]
    assert notes[0].startswith(story)
    assert "its last output:" in notes[0]
    assert "Traceback" not in result.text
    assert "session.py" not in result.out
    errors = result.out.partition("= ERRORS =")[2].partition("= gRPC conformance")[0]
    assert len(errors.splitlines()) <= 3 * 40, "a headline and a line for each"


def test_server_that_dies_breaks_the_cases_after_it_on_every_worker(tmp_path: Path) -> None:
    result = run(tmp_path, SERVER, "-n", "2", cases=DYING)
    assert result.code == 1
    found = verdicts(tmp_path)
    assert found["b_kills[smg]"] == "passed"
    later = [verdict for name, verdict in found.items() if name.startswith("c_later")]
    # A case that was under way has seen the server break off; that is for the server to answer.
    assert later.count("broken") >= 10
    assert later.count("failed") <= 1
    summary = result.out.partition("= gRPC conformance")[2]
    assert "cases from mine/c_later" in summary
    assert "nothing answers at 127.0.0.1:" in summary
    assert f"the command {SERVER!r} was ended by SIGKILL during the run"[:150] in summary
    assert "Traceback" not in result.text


HANGING = """
from pathlib import Path
import threading
import pytest
from pytest_grpc_conformance.marker import requirement

@requirement("SMG-GEN-016")
@pytest.mark.parametrize("number", [1, 2])
def test_hangs(grpc_target, number):
    Path(f"hangs{number}").write_text("yes")
    threading.Event().wait(300)
"""


@pytest.mark.parametrize(
    ("target", "workers"),
    [("command", ()), ("command", ("-n", "2")), ("in-process", ())],
    ids=["command", "command-xdist", "in-process"],
)
def test_interrupt_ends_the_run_and_leaves_no_server(tmp_path: Path, target: str, workers: tuple[str, ...]) -> None:
    project(tmp_path, test_mine=HANGING)
    chosen = ["--grpc-command", SERVER] if target == "command" else ["--grpc-server", "grpcio"]
    command = pytest_command(*chosen, "--grpc-protocol", "smg", *workers, plugins=PLUGINS)
    with started(command, tmp_path) as process:
        appears(tmp_path / "hangs1")
        if workers:
            appears(tmp_path / "hangs2")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 2, out
    assert "KeyboardInterrupt" in out
    assert "INTERNALERROR" not in out
    if target == "command":
        assert not is_running(int((tmp_path / "pid").read_text()))
