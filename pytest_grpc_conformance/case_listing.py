"""The cases and the rows that they name, by collecting them without running any."""

from __future__ import annotations

import contextlib
import io

import pytest

from pytest_grpc_conformance.hooks import case_of
from pytest_grpc_conformance.requirements.coverage import CaseRef


class _Listener:
    """A plugin that keeps what was collected."""

    def __init__(self) -> None:
        self.found: dict[str, CaseRef] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            case = case_of(item)
            if case is not None:
                # A case has one item per server library; its id and its rows are the same for each.
                self.found[case.case_id] = CaseRef(case.case_id, case.requirements, case.summary)


class ListingFailed(RuntimeError):
    """The cases could not be collected; the message has pytest's last lines."""


def list_cases(ini: str, package: str) -> tuple[CaseRef, ...]:
    """Every case of a package of cases, by id. Raises ``ListingFailed``."""
    listener = _Listener()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(
            [
                "-c",
                ini,
                "--rootdir",
                ".",
                "--pyargs",
                package,
                "--collect-only",
                "-qq",
                "-p",
                "no:cacheprovider",
            ],
            plugins=[listener],
        )
    if code != 0:
        raise ListingFailed("\n".join(output.getvalue().splitlines()[-5:]))
    return tuple(sorted(listener.found.values(), key=lambda case: case.case_id))
