"""What a run says about golden files that are missing, broken or old, and how it writes them anew."""

from __future__ import annotations

import importlib.resources
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the installed package, whose golden files may be harmed."""
    root = tmp_path / "site" / "pytest_grpc_conformance"
    for package, folder in {"": root, ".cases": root / "cases", ".fixtures": root / "fixtures"}.items():
        source = Path(str(importlib.resources.files(f"pytest_grpc_conformance{package}")))
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return root


@pytest.fixture
def goldens(tree: Path) -> Path:
    return tree / "fixtures" / "golden"


@pytest.fixture
def run(tree: Path, tmp_path: Path) -> Run:
    """Runs golden cases of the copy on one library and protocol, with more arguments and environment."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-c", str(tree / "conformance.ini"), "--rootdir", ".", "-q"]
        command += ["-p", "no:cacheprovider", "--grpc-server", "grpcio", "--grpc-protocol", "openengine", *arguments]
        command += ["--pyargs", "pytest_grpc_conformance.cases.test_golden"]
        env = {**os.environ, "PYTHONPATH": str(tree.parent), "CI": "", **environment}
        env.pop("PYTEST_ADDOPTS", None)
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    return run


def _texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text("utf-8") for path in (folder / "openengine").iterdir()}


def test_harmed_files_are_named_and_no_server_is_blamed(run: Run, goldens: Path) -> None:
    folder = goldens / "openengine"
    (folder / "plain-1.textproto").unlink()
    text = (folder / "plain-17.textproto").read_text("utf-8")
    (folder / "plain-17.textproto").write_text(text.replace("token_id: 103", "token_di: 103"), "utf-8")
    (folder / "logprobs-1.textproto").write_bytes(b"\xff\xfe")
    (folder / "logprobs-17.textproto").write_text("# nothing\n", "utf-8")
    text = (folder / "stop-string-17.textproto").read_text("utf-8")
    (folder / "stop-string-17.textproto").write_text(text.replace("token_id: 103", "token_id: 104"), "utf-8")
    text = (folder / "stop-string-1.textproto").read_text("utf-8")
    (folder / "stop-string-1.textproto").write_text(text.replace('"<end>" }', '"<End>" }', 1), "utf-8")
    done = run("-k", "plain or logprobs or stop")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "9 results: 3 passed, 6 broken" in done.stdout
    for line in (
        "openengine/plain-1.textproto is missing; restore it, or write it anew with pytest --grpc-update-golden",
        "openengine/plain-17.textproto, line 8, is not a GenerateResponse",
        "openengine/logprobs-1.textproto cannot be read",
        "openengine/logprobs-17.textproto holds no messages",
        "openengine/stop-string-17.textproto, message 4 of 18, field token.tokens[0].token_id: "
        "the file has 104, the rule 103",
        "openengine/stop-string-1.textproto, the request, field stopping.conditions[0].stop_text: "
        "the file has '<End>', the rule '<end>'",
    ):
        assert line in done.stdout, done.stdout


def test_update_writes_the_files_and_tells_what_changed(run: Run, goldens: Path) -> None:
    before = _texts(goldens)
    (goldens / "openengine" / "plain-1.textproto").unlink()
    harmed = before["plain-17.textproto"].replace("token_id: 103", "token_id: 1")
    (goldens / "openengine" / "plain-17.textproto").write_text(harmed, "utf-8")
    (goldens / "openengine" / "logprobs-1.textproto").write_bytes(b"\xff\xfe")
    done = run("--grpc-update-golden", "-k", "messages")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _texts(goldens) == before
    told = [line for line in done.stdout.splitlines() if line.startswith("golden openengine/")]
    assert sorted(line.partition(":")[0] for line in told) == [
        "golden openengine/logprobs-1.textproto changed from line 1 on",
        "golden openengine/plain-1.textproto is new, with 6 lines",
        "golden openengine/plain-17.textproto changed from line 8 on",
    ]
    assert "token_id: 1 }" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        pytest.param(("-n", "2"), {}, "does not go with xdist", id="xdist"),
        pytest.param((), {"CI": "true"}, "refused in CI", id="ci"),
    ],
)
def test_update_is_refused(
    run: Run, goldens: Path, arguments: tuple[str, ...], environment: dict[str, str], reason: str
) -> None:
    if "-n" in arguments:
        pytest.importorskip("xdist")
    (goldens / "openengine" / "plain-1.textproto").unlink()
    done = run("--grpc-update-golden", *arguments, **environment)
    assert done.returncode == 4, done.stdout + done.stderr
    assert reason in done.stderr
    assert not (goldens / "openengine" / "plain-1.textproto").exists()
