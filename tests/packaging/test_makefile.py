"""The Makefile on machines that lack something, played by stand-ins for python3 on an otherwise bare PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("make", "cp", "echo", "find", "mkdir", "rm", "touch")

# Answers what the Makefile asks an interpreter, and as .venv/bin/python logs what it is told to run.
PYTHON = """#!/bin/sh
case "$*" in
  (*sys.version_info*) echo {version} ;;
  (*ensurepip*) exit {venv_status} ;;
  ("-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  ("-m pytest "*) echo "$*" >> "{log}"; exit {pytest_status} ;;
  ("-m pip "*|benchmarks/*) echo "$*" >> "{log}" ;;
  (*) echo "unexpected: $*" >&2; exit 99 ;;
esac
"""


@dataclass
class Machine:
    """A folder with the Makefile, and a PATH that holds make's own tools and nothing else."""

    folder: Path

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def install_python(
        self, name: str = "python3", version: str = "3.11", venv_status: int = 0, pytest_status: int = 0
    ) -> None:
        script = self.bin / name
        script.write_text(
            PYTHON.format(
                version=version,
                venv_status=venv_status,
                pytest_status=pytest_status,
                log=self.folder / "log",
            )
        )
        script.chmod(0o755)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Nothing of this process's environment: under `make test` it carries the outer make's own variables.
        return subprocess.run(
            [self.bin / "make", *arguments],
            cwd=self.folder,
            env={"PATH": str(self.bin), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def log(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.bin.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, f"the tests of the Makefile need {tool}"
        (machine.bin / tool).symlink_to(found)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return machine


def only_line(result: subprocess.CompletedProcess[str]) -> str:
    """What a failed make said, which has to be one line."""
    assert result.returncode != 0
    lines = (result.stdout + result.stderr).splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize("goal", ["conformance", "test", "lint", "bench"])
def test_a_missing_python_is_named(machine: Machine, goal: str) -> None:
    line = only_line(machine.make(goal))

    assert "python3 does not run: install Python 3.10 or newer (python3, python3-venv)" in line
    assert not (machine.folder / ".venv").exists()


@pytest.mark.parametrize("goal", ["conformance", "test"])
def test_a_shim_that_selects_no_version_counts_as_missing(machine: Machine, goal: str) -> None:
    shim = machine.bin / "python3"
    shim.write_text("#!/bin/sh\necho 'no version is selected' >&2\nexit 127\n")
    shim.chmod(0o755)

    assert "python3 does not run" in only_line(machine.make(goal))


@pytest.mark.parametrize("goal", ["conformance", "test"])
@pytest.mark.parametrize("version", ["2.7", "3.6", "3.9"])
def test_a_python_that_is_too_old_is_named_with_its_version(machine: Machine, goal: str, version: str) -> None:
    machine.install_python(version=version)

    line = only_line(machine.make(goal))

    assert f"python3 is Python {version}: install Python 3.10 or newer" in line
    assert not (machine.folder / ".venv").exists()


@pytest.mark.parametrize("goal", ["conformance", "test"])
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.13"])
def test_a_python_without_venv_names_the_package_of_its_version(machine: Machine, goal: str, version: str) -> None:
    machine.install_python(version=version, venv_status=1)

    line = only_line(machine.make(goal))

    assert f"Python {version} has no venv: install python{version}-venv" in line
    assert not (machine.folder / ".venv").exists()


@pytest.mark.parametrize("version", ["3.10", "3.14", "3.20", "4.0"])
def test_every_version_from_the_floor_on_is_taken(machine: Machine, version: str) -> None:
    machine.install_python(version=version)

    result = machine.make("test")

    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("goal", "arguments"), [("test", "tests"), ("conformance", "--pyargs pytest_grpc_conformance.cases")]
)
def test_a_goal_installs_once_and_hands_its_arguments_on(machine: Machine, goal: str, arguments: str) -> None:
    machine.install_python()

    for _ in range(2):
        result = machine.make(goal, "JOBS=7", "ARGS=-k some_case")
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")

    install, *runs = machine.log()
    assert install.startswith("-m pip install ")
    assert install.endswith("--editable .[test]")
    assert len(runs) == 2
    for run in runs:
        assert f" {arguments} -n 7 -q -k some_case" in run


def test_bench_runs_every_benchmark_or_the_named_one(machine: Machine) -> None:
    machine.install_python()
    scripts = ["benchmarks/one.py", "benchmarks/two.py"]
    (machine.folder / "benchmarks").mkdir()
    for script in scripts:
        (machine.folder / script).touch()

    for arguments in ([], ["BENCH=benchmarks/two.py", "ARGS=--rounds 1"]):
        assert machine.make("bench", *arguments).returncode == 0

    assert machine.log()[1:] == [*scripts, "benchmarks/two.py --rounds 1"]


def test_a_changed_pyproject_is_installed_again(machine: Machine) -> None:
    machine.install_python()
    machine.make("test")
    newer = (machine.folder / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(machine.folder / "pyproject.toml", (newer, newer))

    machine.make("test")

    assert sum(line.startswith("-m pip install ") for line in machine.log()) == 2


def test_another_interpreter_and_another_folder_are_used(machine: Machine) -> None:
    machine.install_python("python3.12", version="3.12")

    result = machine.make("test", "PYTHON=python3.12", "VENV=elsewhere/venv")

    assert result.returncode == 0, result.stderr
    assert (machine.folder / "elsewhere" / "venv" / "bin" / "python").exists()
    assert not (machine.folder / ".venv").exists()


@pytest.mark.parametrize("goal", ["conformance", "test"])
def test_a_failed_run_fails_the_goal(machine: Machine, goal: str) -> None:
    machine.install_python(pytest_status=1)

    assert machine.make(goal).returncode == 2


def test_clean_removes_a_virtual_environment_and_no_other_folder(machine: Machine) -> None:
    ours, other = machine.folder / "ours", machine.folder / "other"
    for folder in (ours, other):
        folder.mkdir()
    (ours / "pyvenv.cfg").touch()

    for folder in (ours, other):
        assert machine.make("clean", f"VENV={folder.name}").returncode == 0

    assert not ours.exists()
    assert other.exists()


def test_help_names_every_goal(machine: Machine) -> None:
    phony = re.search(r"^\.PHONY:(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    goals = set(phony[1].split()) - {"help"}

    assert set(re.findall(r"^make (\w+) ", machine.make("help").stdout, re.MULTILINE)) == goals
