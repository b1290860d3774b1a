"""The marker with which a case says what it checks and what it needs."""

from __future__ import annotations

import pytest

from pytest_grpc_conformance.targets.base import Capability

SCRIPTED = Capability.SCRIPTED
LIFECYCLE = Capability.LIFECYCLE
REFERENCE = Capability.REFERENCE


def requirement(*ids: str, needs: tuple[Capability, ...] = ()) -> pytest.MarkDecorator:
    """Mark a case with the ids of the requirement rows that it checks, for every protocol that it serves.

    A failure names those of the protocol under test (by prefix; ``GRPC-`` rows go with every protocol). ``needs`` are
    capabilities without which a target cannot carry the case.
    """
    return pytest.mark.requirement(*ids, needs=needs)
