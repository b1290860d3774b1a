"""A launched process: its ready line, its output, and that nothing of it survives."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_grpc_conformance.targets.base import TargetBroken
from pytest_grpc_conformance.targets.endpoint import check_listens
from pytest_grpc_conformance.targets.launched import KEPT_LINES, LaunchedProcess
from tests.targets.live import appears, ends, is_running

READY = "import sys, time; print('before'); print('READY address=127.0.0.1:5', flush=True); "


def python(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


def launched(code: str, **options: float) -> LaunchedProcess:
    return LaunchedProcess(python(code), **{"ready_timeout": 30.0, **options})


def test_ready_line_has_the_address_and_stop_has_the_exit_code() -> None:
    handler = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); "
    process = launched(READY.replace("import sys", handler + "import sys") + "time.sleep(300)")
    process.start()
    assert process.address == "127.0.0.1:5"
    assert process.alive
    assert process.stop() == 5
    assert not process.alive


def test_context_manager_stops_it(tmp_path: Path) -> None:
    with launched(READY + "time.sleep(300)") as process:
        assert process.alive
    assert not process.alive


def test_only_the_last_lines_are_kept_and_what_they_hold_is_harmless() -> None:
    code = "for n in range(100): print('\\x1b[31mline', n, '\\x07' * 500)"
    with pytest.raises(TargetBroken) as caught:
        launched(code).start()
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("ended with exit code 0 before it was ready; its last output:")
    assert len(lines) == 1 + KEPT_LINES
    assert lines[-1].startswith("    \\x1b[31mline 99 ")
    assert all(line.isprintable() and len(line) <= 170 for line in lines[1:])


@pytest.mark.parametrize(
    ("command", "told"),
    [
        pytest.param("", "--grpc-command is empty", id="empty"),
        pytest.param("serve 'it", 'cannot read --grpc-command "serve \'it": No closing quotation', id="open-quote"),
        pytest.param("/", "cannot start '/': Permission denied", id="folder"),
        pytest.param("sh -c 'kill -9 $$'", "was ended by SIGKILL before it was ready; its last output:", id="killed"),
        pytest.param("sleep 300", "was not ready within 0.5 s (no line 'READY address=...'); its last o", id="silent"),
        pytest.param(
            "sh -c 'exec >&- 2>&-; sleep 300'",
            "closed its standard output without a line 'READY address=...'",
            id="closes",
        ),
    ],
)
def test_command_that_never_gets_ready_is_told_with_its_reason(command: str, told: str) -> None:
    with pytest.raises(TargetBroken) as caught:
        LaunchedProcess(command, ready_timeout=0.5).start()
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("address", "told"),
    [("nonsense", "the address 'nonsense' is not host:port"), ("127.0.0.1:1", "nothing answers at 127.0.0.1:1: Conn")],
)
def test_address_in_the_ready_line_must_lead_somewhere(address: str, told: str) -> None:
    with launched(READY.replace("127.0.0.1:5", address) + "time.sleep(300)") as process:
        assert process.address == address
        with pytest.raises(TargetBroken) as caught:
            check_listens(process.address, 5)
    assert told in str(caught.value)


def test_output_after_the_ready_line_is_read_so_that_the_server_never_blocks_on_it(tmp_path: Path) -> None:
    done = tmp_path / "done"
    with launched(READY + f"print('x' * 1_000_000); open({str(done)!r}, 'w').write('yes'); time.sleep(300)"):
        assert appears(done) == "yes"


def test_bytes_that_are_no_text_do_not_hurt() -> None:
    code = "import sys; sys.stdout.buffer.write(b'\\xff\\xfe bad\\n'); sys.exit(3)"
    with pytest.raises(TargetBroken, match="ended with exit code 3"):
        launched(code).start()


def test_process_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"open({str(child)!r}, 'w').write(str(subprocess.Popen(['sleep', '300']).pid)); "
        "print('READY address=127.0.0.1:5', flush=True); time.sleep(300)"
    )
    process = launched(code, stop_timeout=0.2).start()
    pid = int(appears(child))
    assert is_running(pid)
    assert process.stop() == -signal.SIGKILL
    assert ends(pid)


def test_interrupted_stop_still_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    process = launched(
        READY.replace("import sys", "import signal; signal.signal(15, 1); import sys") + "time.sleep(300)"
    )
    process.start()
    pid = process._process.pid
    waits = [KeyboardInterrupt()]
    wait = process._process.wait

    def interrupted(timeout: float | None = None) -> int:
        if waits:
            raise waits.pop()
        return wait(timeout)

    monkeypatch.setattr(process._process, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.stop()
    assert ends(pid)
    process.stop()


def test_stop_does_not_wait_for_a_grandchild_that_left_the_group_and_keeps_the_output(tmp_path: Path) -> None:
    grandchild = tmp_path / "grandchild"
    code = (
        "import subprocess, sys, time; p = subprocess.Popen(['sleep', '300'], start_new_session=True); "
        f"open({str(grandchild)!r}, 'w').write(str(p.pid)); "
        "print('READY address=127.0.0.1:5', flush=True); time.sleep(300)"
    )
    process = launched(code, stop_timeout=0.5).start()
    pid = int(appears(grandchild))
    try:
        assert process.stop() == -signal.SIGTERM
    finally:
        os.kill(pid, signal.SIGKILL)
    process._reader.join(10)
    assert process._process.stdout is not None
    process._process.stdout.close()


@pytest.mark.parametrize(
    ("code", "how"),
    [("sys.exit(4)", "ended with exit code 4"), ("import os; os.kill(os.getpid(), 9)", "was ended by SIGKILL")],
)
def test_death_is_told_in_one_line_and_the_obituary_has_the_last_output(code: str, how: str) -> None:
    process = launched(READY + f"print('last words', flush=True); {code}").start()
    subprocess.Popen.wait(process._process, 30)
    assert not process.alive
    assert process.death() == f"the command {process.command!r} {how} during the run"
    assert process.obituary().splitlines() == [f"{process.death()}; its last output:", "    before", "    last words"]
    process.stop()


def test_processor_time_is_counted() -> None:
    with launched(READY + "time.sleep(300)") as process:
        assert 0 < process.cpu_seconds() < 30
