"""``--grpc-target``: a user's own servicers in place of the reference ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import project, report, run_pytest

SERVICERS = """
from pytest_grpc_conformance import registry
from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.servers.grpcio import GrpcioAio
from pytest_grpc_conformance.targets.plan import TargetPlan

ENGINES = []

def registrations(engine):
    ENGINES.append(engine)
    return registry.protocol("smg").servicers(engine)

def pairs(engine):
    return [(one.add, one.servicer) for one in registrations(engine)]

def one_by_one(engine):
    yield from pairs(engine)

class Mine:
    class Nested:
        plan = TargetPlan(servicers=registrations)

class OwnEngine(GatedEngine):
    pass

class OwnLibrary(GrpcioAio):
    name = "own"

own_engine = TargetPlan(engine=OwnEngine)
own_library = TargetPlan(library=OwnLibrary())
as_reference = TargetPlan(servicers=pairs, reference=True)
"""
CASES = """
from pytest_grpc_conformance.engines.script import one_by_one, script, tokens
from pytest_grpc_conformance.marker import REFERENCE, requirement
from pytest_grpc_conformance.protocols.base import Request

@requirement("SMG-GEN-016")
def test_streams(grpc_target):
    import mine
    stream = grpc_target.play(script(one_by_one(tokens(3))), Request("r"))
    stream.rest()
    assert stream.status.ok
    assert [token.id for item in stream.received for token in getattr(item.event, "tokens", ())] == [100, 101, 102]
    print("engine", type(grpc_target.engine).__name__, "library", type(grpc_target.library).__name__)
    assert not mine.ENGINES or mine.ENGINES[-1] is grpc_target.engine

@requirement("SMG-GEN-016", needs=(REFERENCE,))
def test_only_for_the_reference(grpc_target):
    pass
"""


def run(folder: Path, plan: str, *arguments: str) -> tuple[str, dict[str, set[str]]]:
    project(folder, mine=SERVICERS, test_mine=CASES)
    chosen = ("--grpc-target", f"mine:{plan}", "--grpc-protocol", "smg", "--grpc-report", "report.json", "-s")
    result = run_pytest(folder, *chosen, *arguments, plugins=("grpc_conformance", "xdist"))
    assert result.code == 0, result.text
    verdicts: dict[str, set[str]] = {}
    for entry in report(folder / "report.json")["results"]:
        name = entry["case_id"].removeprefix("mine/").removesuffix("[smg]")
        verdicts.setdefault(name, set()).add(entry["target"] + ": " + entry["verdict"])
    return result.out, verdicts


BOTH_PASS = {"grpcio: passed", "pygrpc-native: passed"}


@pytest.mark.parametrize("plan", ["registrations", "pairs", "one_by_one", "Mine.Nested.plan"])
def test_servicers_run_on_every_library_and_on_an_engine_of_each_case(tmp_path: Path, plan: str) -> None:
    out, verdicts = run(tmp_path, plan)
    assert verdicts["streams"] == BOTH_PASS
    assert verdicts["only_for_the_reference"] == {"grpcio: not applicable", "pygrpc-native: not applicable"}
    why = "the protocol leaves this open; it is asked of the reference servicer only"
    assert f"n/a  grpcio: {why} [needs-reference] (1 case)" in out


def test_servicers_are_found_in_the_current_folder_by_workers_too(tmp_path: Path) -> None:
    _, verdicts = run(tmp_path, "pairs", "-n", "2")
    assert verdicts["streams"] == BOTH_PASS


def test_plan_can_claim_the_message_boundaries_of_the_reference(tmp_path: Path) -> None:
    _, verdicts = run(tmp_path, "as_reference")
    assert verdicts["only_for_the_reference"] == BOTH_PASS


@pytest.mark.parametrize(
    ("plan", "used"),
    [("own_engine", "engine OwnEngine library GrpcioAio"), ("own_library", "engine GatedEngine library OwnLibrary")],
)
def test_plan_replaces_the_engine_or_the_library(tmp_path: Path, plan: str, used: str) -> None:
    out, verdicts = run(tmp_path, plan, "--grpc-server", "grpcio")
    assert used in out
    assert verdicts["streams"] == {"grpcio: passed"}
