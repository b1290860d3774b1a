"""However a run ends, the server that it has started is gone."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_grpc_conformance.targets.launched import LaunchedProcess
from tests.running import project, pytest_command
from tests.targets.live import appears, ends, is_running, started
from tests.targets.test_launched_process import READY, launched
from tests.targets.test_launched_target import PLUGINS, SERVER

CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")
WORKERS = pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
HANGING = """
import os
import threading
from pathlib import Path
import pytest
from pytest_grpc_conformance.marker import requirement

@requirement("SMG-GEN-016")
@pytest.mark.parametrize("number", [1, 2])
def test_hangs(grpc_target, number):
    if not Path("go_on").exists():
        Path(f"hangs{number}").write_text(str(os.getpid()))
        threading.Event().wait(300)
"""
EXITS = """
import os
import signal

def leave(number, frame):
    os._exit(9)

signal.signal(signal.SIGTERM, leave)
"""


def command(folder: Path, *workers: str, **files: str) -> list[str]:
    project(folder, test_mine=HANGING, **files)
    return pytest_command("--grpc-command", SERVER, "--grpc-protocol", "smg", *workers, plugins=PLUGINS)


def server_in(folder: Path) -> int:
    return int((folder / "pid").read_text())


@WORKERS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["sigterm", "sighup"])
def test_termination_ends_the_run_as_an_interrupt_does(
    tmp_path: Path, workers: tuple[str, ...], number: signal.Signals
) -> None:
    with started(command(tmp_path, *workers), tmp_path) as process:
        appears(tmp_path / "hangs1")
        if workers:
            appears(tmp_path / "hangs2")
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 2, out
    assert "KeyboardInterrupt" in out
    assert "INTERNALERROR" not in out
    assert not is_running(server_in(tmp_path))


def test_termination_while_the_server_starts_leaves_nothing(tmp_path: Path) -> None:
    slow = "sh -c 'echo $$ > pid; exec sleep 300'"
    arguments = pytest_command("--grpc-command", slow, "--grpc-protocol", "smg", plugins=PLUGINS)
    with started(arguments, tmp_path) as process:
        appears(tmp_path / "pid")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 2, out
    assert not is_running(server_in(tmp_path))


@WORKERS
def test_run_that_is_killed_takes_the_server_along(tmp_path: Path, workers: tuple[str, ...]) -> None:
    with started(command(tmp_path, *workers), tmp_path) as process:
        appears(tmp_path / "hangs1")
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
        assert ends(server_in(tmp_path))


def test_worker_that_is_terminated_is_replaced_and_the_server_stopped_at_the_end(tmp_path: Path) -> None:
    with started(command(tmp_path, "-n", "2"), tmp_path) as process:
        workers = {int(appears(tmp_path / f"hangs{number}")) for number in (1, 2)}
        (tmp_path / "go_on").touch()
        for worker in workers:
            assert worker != process.pid
            os.kill(worker, signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 1, out
    assert out.count("worker 'gw") >= 2
    assert "2 failed" in out
    assert not is_running(server_in(tmp_path))


def test_somebody_elses_handler_is_called_and_the_server_is_gone_whatever_it_does(tmp_path: Path) -> None:
    with started(command(tmp_path, conftest=EXITS), tmp_path) as process:
        appears(tmp_path / "hangs1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 9
        assert ends(server_in(tmp_path))


@pytest.fixture
def ignored() -> Iterator[None]:
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, earlier)


def test_signals_are_as_they_were_once_the_process_is_stopped(ignored: None) -> None:
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with launched(READY + "time.sleep(300)"):
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, "as nohup wants it"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(Exception, match="cannot start"):
        LaunchedProcess("no-such-program", ready_timeout=1.0).start()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handler_that_was_set_meanwhile_stays() -> None:
    def theirs(number: int, frame: object) -> None:
        raise AssertionError

    try:
        with launched(READY + "time.sleep(300)"):
            signal.signal(signal.SIGTERM, theirs)
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.skipif(not CHILDREN.exists(), reason="this system does not list a process's children")
def test_process_can_be_started_off_the_main_thread_and_nothing_is_left_of_it() -> None:
    def run() -> None:
        with launched(READY + "time.sleep(300)") as process:
            addresses.append(process.address)

    def children() -> set[str]:
        return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}

    addresses: list[str] = []
    before = children()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert addresses == ["127.0.0.1:5"]
    assert children() <= before
