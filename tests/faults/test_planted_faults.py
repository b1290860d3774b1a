"""Each planted fault is noticed by the cases that should notice it, and each case notices some planted fault."""

from __future__ import annotations

import grpc
import pytest
from packaging.version import Version

from pytest_grpc_conformance.case_listing import list_cases
from pytest_grpc_conformance.cli import CASES, ini_file
from pytest_grpc_conformance.verdict import Verdict
from tests.faults.judge import judge
from tests.faults.table import Fault, planted

PLANTED = [
    pytest.param(module, fault, protocol, id=f"{fault.mutant}-{protocol}")
    for module, fault in planted()
    for protocol in fault.protocols
]


@pytest.mark.parametrize(("module", "fault", "protocol"), PLANTED)
def test_planted_fault_is_noticed(module: str, fault: Fault, protocol: str) -> None:
    if fault.since and Version(grpc.__version__) < Version(fault.since):
        pytest.skip(f"grpcio before {fault.since} has this fault itself")
    results = judge(f"{module}:{fault.mutant}.{protocol}", protocol, tuple(fault.caught_by), nightly=fault.nightly)
    broken = [f"{r.case_id}: {r.reason}" for r in results if r.verdict is Verdict.BROKEN]
    assert not broken
    for function, rows in fault.caught_by.items():
        failed = [r for r in results if r.verdict is Verdict.FAILED and r.case_id.partition("[")[0] == function]
        assert failed, f"{function} does not notice {fault.mutant} on {protocol}"
        for result in failed:
            assert set(result.requirements) & set(rows.split()), (result.case_id, result.requirements)


def test_every_case_notices_some_fault() -> None:
    caught = {
        (function, protocol) for _, fault in planted() for function in fault.caught_by for protocol in fault.protocols
    }
    cases = {
        (case.case_id.partition("[")[0], case.case_id.partition("[")[2].rstrip("]").split("-")[0])
        for case in list_cases(ini_file(), CASES)
    }
    assert not sorted(cases - caught), "cases that no planted fault makes fail"
