"""The layer that faults of request headers are planted in conforms without them, where grpcio by itself does not."""

from __future__ import annotations

from pytest_grpc_conformance.case_listing import list_cases
from pytest_grpc_conformance.cli import CASES, ini_file
from pytest_grpc_conformance.verdict import Verdict
from tests.faults.judge import judge


def test_strict_layer_conforms() -> None:
    cases = {case.case_id.partition("[")[0] for case in list_cases(ini_file(), CASES)}
    functions = {case for case in cases if case.startswith("grpc_headers/")}
    results = judge("tests.faults.faults_of_grpc_headers:strict.grpc", "grpc", tuple(functions), scale="1")
    assert {result.case_id.partition("[")[0] for result in results} == functions
    assert not [(each.case_id, each.reason) for each in results if each.verdict is not Verdict.PASSED]
