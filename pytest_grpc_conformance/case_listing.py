"""The cases and the rows that they name, by collecting them without running any."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator

import pytest

from pytest_grpc_conformance import registry
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
                self.found[case.case_id] = CaseRef(case.case_id, case.requirements, case.summary)


@contextlib.contextmanager
def _no_more_options() -> Iterator[None]:
    """Without ``PYTEST_ADDOPTS``, which could select cases, or hand them to workers."""
    kept = os.environ.pop("PYTEST_ADDOPTS", None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ["PYTEST_ADDOPTS"] = kept


class ListingFailed(RuntimeError):
    """The cases could not be collected; the message has pytest's last lines."""


def list_cases(ini: str, package: str) -> tuple[CaseRef, ...]:
    """Every case of a package of cases, by id. Raises ``ListingFailed``."""
    listener = _Listener()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), _no_more_options():
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
                # Ids and rows are the same for every server library.
                "--grpc-server",
                registry.names(registry.SERVERS)[0],
                "-p",
                "no:cacheprovider",
            ],
            plugins=[listener],
        )
    if code != 0:
        raise ListingFailed("\n".join(output.getvalue().strip().splitlines()[-5:]))
    return tuple(sorted(listener.found.values(), key=lambda case: case.case_id))
