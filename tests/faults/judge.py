"""Runs chosen cases against a mutant, in this process, and gives their results."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_grpc_conformance import judging
from pytest_grpc_conformance.cli import CASES, ini_file
from pytest_grpc_conformance.reports.document import Result
from pytest_grpc_conformance.verdict import Verdict

TIMEOUT_SCALE = "0.1"
"""A case that waits for what a mutant never does waits one second."""


class _Results:
    """A plugin that keeps the results of a run."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        result = judging.result_of(report)
        if result is not None:
            self.results.append(result)
            if result.verdict is Verdict.FAILED:
                self.failed.add(result.case_id.partition("[")[0])


def judge(
    plan: str,
    protocol: str,
    functions: Sequence[str],
    *,
    server: str = "grpcio",
    scale: str = TIMEOUT_SCALE,
    nightly: bool = False,
) -> list[Result]:
    """The results of case functions (``file/function``) on the plan that ``--grpc-target`` would name."""
    wanted = set(functions)
    listener = _Results()
    output = io.StringIO()
    arguments = [
        "-c",
        ini_file(),
        "--rootdir",
        ".",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
    ]
    arguments += ["--grpc-target", plan, "--grpc-protocol", protocol, "--grpc-server", server]
    arguments += ["--grpc-nightly"] if nightly else []
    arguments += ["--grpc-timeout-scale", scale, "--pyargs"]
    modules = sorted({f"{CASES}.test_{name.partition('/')[0]}" for name in wanted})
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        pytest.main([*arguments, *modules], plugins=[listener, _Only(wanted, listener)])
    assert listener.results, f"no case of {sorted(wanted)} ran:\n{output.getvalue()}"
    return listener.results


class _Only:
    """A plugin that leaves out every case but the wanted functions, and what is left of one that has failed."""

    def __init__(self, wanted: set[str], listener: _Results) -> None:
        self._wanted = wanted
        self._listener = listener

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        from pytest_grpc_conformance.hooks import case_of

        cases = [(item, case_of(item)) for item in items]
        items[:] = [item for item, case in cases if case and case.case_id.partition("[")[0] in self._wanted]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        from pytest_grpc_conformance.hooks import case_of

        case = case_of(item)
        assert case is not None
        if case.case_id.partition("[")[0] in self._listener.failed:
            pytest.skip("another variant has failed already")
