"""Server libraries and protocols that others register, that cannot be loaded, or that are not installed."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.plugin.echo import ECHO, FIXTURES
from tests.running import Ran, project, report, run_cli, run_pytest

LIBRARY = """
from typing import ClassVar

from pytest_grpc_conformance.servers.base import ServerLibrary, start_aio


class Theirs(ServerLibrary):
    name: ClassVar[str] = "theirs"
    requirement: ClassVar[str] = "REQUIREMENT"

    async def start(self, setup):
        import grpc.aio
        print("started by theirs")
        return await start_aio(grpc.aio.server, setup)


class Unfinished(ServerLibrary):
    name: ClassVar[str] = "unfinished"
    requirement: ClassVar[str] = "grpcio"


class Stranger:
    pass


def raises():
    pass

SERVICE = 3
"""
CASE = """
from pytest_grpc_conformance.marker import requirement

@requirement("OE-GEN-018", "SMG-GEN-016")
def test_case(grpc_target):
    assert grpc_target.client.health().serving

@requirement("SMG-GEN-016")
def test_smg_only(grpc_target):
    pass
"""
BROKEN = {
    "no-module": ("no_such_module:Theirs", "ModuleNotFoundError: No module named 'no_such_module'"),
    "no-attribute": ("their_server:Missing", "AttributeError"),
    "unfinished": (
        "their_server:Unfinished",
        "cannot be loaded: TypeError: Can't instantiate abstract class Unfinished",
    ),
    "stranger": ("their_server:Stranger", "is not a ServerLibrary"),
    "number": ("their_server:SERVICE", "is not a ServerLibrary"),
}


def install(folder: Path, requirement: str, entry_points: str) -> Mapping[str, str]:
    """A distribution ``their-server`` of somebody else's; what the environment must say for it to be found."""
    site = folder / "site"
    information = site / "their_server-1.2.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: their-server\nVersion: 1.2\n")
    (information / "entry_points.txt").write_text(entry_points)
    (site / "their_server.py").write_text(LIBRARY.replace("REQUIREMENT", requirement))
    return {"PYTHONPATH": str(site)}


def servers(**points: str) -> str:
    return "[pytest_grpc_conformance.servers]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())


def test_library_of_a_third_party_is_tested_like_ours(tmp_path: Path) -> None:
    changes = install(tmp_path, "their-server>=1", servers(theirs="their_server:Theirs"))
    project(tmp_path, test_mine=CASE, echo=ECHO, test_echo=FIXTURES + "def test_call(grpc_server): pass\n")
    result = run_pytest(tmp_path, "-v", "-s", "--grpc-server", "theirs", changes=changes)
    assert result.code == 0, result.text
    assert result.results() == "4 passed"
    assert result.out.count("started by theirs") == 4
    assert "theirs 1.2" in result.out
    everything = run_pytest(tmp_path, "-v", changes=changes)
    names = [
        name for name in ("grpcio", "pygrpc-native", "theirs") if f"test_case[{name}-smg] PASSED" in everything.out
    ]
    assert names == ["grpcio", "pygrpc-native", "theirs"]
    told = run_pytest(tmp_path, "--grpc-server", "nobodys", changes=changes)
    assert "legal names: grpcio, pygrpc-native, theirs" in told.err


def test_protocol_of_a_third_party_is_tested_like_ours(tmp_path: Path) -> None:
    points = "[pytest_grpc_conformance.protocols]\ntheir-smg = their_server:PROTOCOL\n"
    changes = install(tmp_path, "grpcio", points)
    source = tmp_path / "site" / "their_server.py"
    protocol = """
from pytest_grpc_conformance.protocols.smg import SMG

class TheirProtocol(type(SMG)):
    name = "their-smg"

PROTOCOL = TheirProtocol()
"""
    source.write_text(source.read_text() + protocol)
    project(tmp_path, test_mine=CASE)
    result = run_pytest(tmp_path, "-v", "--grpc-server", "grpcio", "--grpc-protocol", "their-smg", changes=changes)
    assert result.results() == "2 passed", result.text
    assert "test_case[grpcio-their-smg] PASSED" in result.out


@pytest.mark.parametrize("name", BROKEN)
def test_entry_point_that_cannot_be_used_is_named_with_its_distribution(tmp_path: Path, name: str) -> None:
    value, problem = BROKEN[name]
    changes = install(tmp_path, "their-server", servers(theirs=value))
    project(tmp_path, test_mine=CASE)
    result = run_pytest(tmp_path, "--grpc-protocol", "smg", changes=changes)
    check_broken(result, value, problem)


def check_broken(result: Ran, value: str, problem: str) -> None:
    lines = [line for line in result.lines if line.strip()]
    assert result.code == 4, result.text
    assert len(lines) == 1, result.text
    assert f"{value} (theirs of their-server)" in lines[0]
    assert problem in lines[0]


def test_broken_entry_point_is_one_line_for_every_way_to_run_the_cases(tmp_path: Path) -> None:
    value, problem = BROKEN["no-module"]
    changes = {**install(tmp_path, "their-server", servers(theirs=value))}
    cases = ("--pyargs", "pytest_grpc_conformance.cases")
    check_broken(run_pytest(tmp_path, *cases, changes=changes), value, problem)
    workers = run_pytest(tmp_path, "-n", "2", *cases, changes=changes, plugins=("grpc_conformance", "xdist"))
    check_broken(workers, value, problem)
    named = run_cli(tmp_path, "run", changes={**changes, "PYTEST_PLUGINS": "pytest_grpc_conformance.plugin"})
    check_broken(named, value, problem)
    served = run_cli(tmp_path, "serve", "--protocol", "smg", "--server", "theirs", changes=changes)
    check_broken(served, value, problem)


def test_broken_entry_point_does_not_hurt_who_does_not_ask_for_it(tmp_path: Path) -> None:
    changes = install(tmp_path, "their-server", servers(theirs="no_such_module:Theirs"))
    project(tmp_path, test_plain="def test_plain(): pass\n", echo=ECHO, test_mine=CASE)
    assert run_pytest(tmp_path, "test_plain.py", changes=changes).results() == "1 passed"
    chosen = run_pytest(tmp_path, "test_mine.py", "--grpc-server", "grpcio", changes=changes)
    assert chosen.results() == "3 passed"
    project(tmp_path, test_echo=FIXTURES + "def test_call(grpc_server): pass\n")
    met_late = run_pytest(tmp_path, "test_echo.py", changes=changes)
    assert met_late.code != 0
    assert "no_such_module:Theirs (theirs of their-server) cannot be loaded" in met_late.out
    assert "Traceback" not in met_late.text
    assert "hooks.py" not in met_late.text


MISSING = {
    "not-installed": ("no-such-distribution>=2", "no-such-distribution is not installed", "(missing)"),
    "too-old": ("their-server>=2.0", "their-server 1.2 is installed, >=2.0 is needed", "1.2"),
}


@pytest.mark.parametrize("name", MISSING)
def test_library_that_is_missing_or_too_old_is_not_applicable_in_every_report(tmp_path: Path, name: str) -> None:
    requirement, reason, version = MISSING[name]
    remedy = f"pip install '{requirement}'"
    changes = install(tmp_path, requirement, servers(theirs="their_server:Theirs"))
    project(tmp_path, test_mine=CASE, echo=ECHO, test_echo=FIXTURES + "def test_call(grpc_server): pass\n")
    arguments = ("-rs", "--grpc-server", "theirs", "--grpc-report", "report.json", "--junitxml", "junit.xml")
    result = run_pytest(tmp_path, *arguments, changes=changes)
    assert result.code == 0
    assert result.results() == "4 skipped"
    assert f"n/a  theirs: {reason}; {remedy} [library-missing] (3 cases)" in result.out
    assert f"theirs {version}" in result.out
    # The three cases are skipped where the harness skips, the user's own test in the fixture.
    skips = [line for line in result.lines if line.startswith("SKIPPED")]
    assert [f"not applicable: {reason}; {remedy}" in line for line in skips] == [True] * len(skips)
    assert skips
    data = report(tmp_path / "report.json")
    assert data["targets"] == [{"name": "theirs", "version": version}]
    assert {entry["verdict"] for entry in data["results"]} == {"not applicable"}
    assert {entry["reason"] for entry in data["results"]} == {f"{reason}; {remedy} [library-missing]"}
    skipped = xml.etree.ElementTree.parse(tmp_path / "junit.xml").iter("skipped")
    assert all(remedy in json.dumps(element.attrib) for element in skipped)


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_required_library_that_is_missing_fails_the_run_before_any_engine_is_built(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    changes = install(tmp_path, "no-such-distribution>=2", servers(theirs="their_server:Theirs"))
    refuses = "from pytest_grpc_conformance.engines.gated import GatedEngine\nGatedEngine.__init__ = None\n"
    project(tmp_path, test_mine=CASE, conftest=refuses)
    plugins = ("grpc_conformance", "xdist")
    result = run_pytest(tmp_path, "--grpc-require", "theirs", *arguments, changes=changes, plugins=plugins)
    assert result.code == 1
    told = "ERROR: --grpc-require theirs: no-such-distribution is not installed; pip install 'no-such-distribution>=2'"
    assert [line for line in result.lines if line.strip()] == [told]


def test_required_library_that_is_there_changes_nothing(tmp_path: Path) -> None:
    project(tmp_path, test_mine=CASE)
    result = run_pytest(tmp_path, "--grpc-require", "grpcio", "--grpc-server", "grpcio")
    assert result.results() == "3 passed"
