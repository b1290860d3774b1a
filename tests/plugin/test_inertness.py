"""Installed and not used, the plugin does nothing that anybody could notice."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.running import Ran, project, run_pytest

OWN = ("pytest_grpc_conformance", "__editable__")
REPORTS_MODULES = """
import json, sys
import pytest

class Early:
    def pytest_unconfigure(self, config):
        with open("modules.json", "w") as file:
            json.dump(sorted(sys.modules), file)

@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Early())

def pytest_generate_tests(metafunc):
    autouse = [name for name in metafunc.fixturenames if name.startswith("grpc")]
    assert not autouse, autouse
"""
PLAIN = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_plain(number, tmp_path):
    pass

class TestInClass:
    def test_method(self):
        pass
"""


def ran(folder: Path, *arguments: str, plugins: Sequence[str]) -> tuple[Ran, set[str]]:
    project(folder, test_plain=PLAIN, conftest=REPORTS_MODULES)
    result = run_pytest(folder, *arguments, plugins=plugins)
    assert result.code == 0, result.text
    return result, set(json.loads((folder / "modules.json").read_text()))


def without_times(text: str) -> str:
    return re.sub(r"\d+\.\d+s", "N s", text)


@pytest.mark.parametrize("more", [(), ("xdist",)], ids=["alone", "xdist"])
def test_unused_plugin_imports_nothing_and_prints_nothing(tmp_path: Path, more: tuple[str, ...]) -> None:
    arguments = ("-v", "-rA", "--setup-show", *(("-n", "1") if more else ()))
    ours, our_modules = ran(tmp_path, *arguments, plugins=("grpc_conformance", *more))
    theirs, their_modules = ran(tmp_path, *arguments, plugins=more)
    added = our_modules - their_modules
    assert not {name for name in added if not name.startswith(OWN)}, "neither grpc nor protobuf nor anything else"
    assert "pytest_grpc_conformance.plugin" in added
    assert not {name for name in added if name.endswith((".session", ".judging", ".collection", ".options"))}
    # pytest's own header names every plugin that is loaded.
    header = re.compile(r"^plugins: .*\n", re.MULTILINE)
    assert header.sub("", without_times(ours.text)) == header.sub("", without_times(theirs.text))


def test_unused_plugin_adds_no_warning_and_no_fixture_under_the_strictest_configuration(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\nxfail_strict = true\n"
    )
    result, _ = ran(tmp_path, "-W", "error", "--setup-plan", plugins=("grpc_conformance",))
    assert "grpc" not in result.text.replace("grpc-conformance-", "").replace(str(tmp_path), "")


def test_header_and_summary_stay_away_from_a_run_that_only_mentions_the_marker(tmp_path: Path) -> None:
    project(tmp_path, test_a='import pytest\n\n@pytest.mark.requirement("X")\ndef test_a(): pass\n')
    result = run_pytest(tmp_path, "--strict-markers")
    assert result.results() == "1 passed"
    assert "gRPC conformance" not in result.text
