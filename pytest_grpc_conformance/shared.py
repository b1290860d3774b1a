"""Names and keys that the hooks, which every pytest run imports, share with what only a conformance run imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_grpc_conformance.session import Run

CHOICE_FIXTURE = "grpc_target_choice"
LIBRARY_FIXTURE = "grpc_server_library"
LIBRARY_TARGET_FIXTURE = "grpc_library"
WIRE = "grpc"
"""The word for cases about a server library itself, where others have the name of a protocol."""
CASES = "pytest_grpc_conformance.cases"
RUN: pytest.StashKey[Run] = pytest.StashKey()
"""The state of a run that uses the suite; ``session.run_of`` makes it."""


class CannotJudge(RuntimeError):
    """The run cannot judge what was asked for: a required library is missing, or the target cannot be had."""
