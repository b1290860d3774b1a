"""What is built is what is in the checkout: an sdist, the wheel from that, and the cases in the wheel."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from pytest_grpc_conformance import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
PACKAGE = "pytest_grpc_conformance"
ENTRY_POINTS = {"console_scripts": PYPROJECT["project"]["scripts"]} | PYPROJECT["project"]["entry-points"]

# Folder in the checkout -> folder in the wheel.
SHIPPED = {PACKAGE: PACKAGE} | {
    folder: package.replace(".", "/") for package, folder in SETUPTOOLS["package-dir"].items()
}
LEFT_BEHIND = shutil.ignore_patterns("__pycache__", "*.py[co]", ".*")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout as a clean clone has it; a build in the checkout itself would reuse leftovers."""
    tree = tmp_path_factory.mktemp("tree")
    for folder in SHIPPED:
        shutil.copytree(ROOT / folder, tree / folder, ignore=LEFT_BEHIND)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, tree)
    return tree


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, tree)
    (wheel,) = dist.glob("*.whl")
    return wheel


def run(*command: str | Path, cwd: Path | None = None, pythonpath: Path | None = None) -> str:
    """The stdout of a command that has to succeed; what it printed is the failure's text otherwise."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "PYTHON"))}
    if pythonpath:
        environment["PYTHONPATH"] = str(pythonpath)
    result = subprocess.run(command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode:
        pytest.fail(f"{command}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def shipped_files(tree: Path) -> Iterator[str]:
    """Every file of the shipped folders, by its name in the wheel, less notes for readers of the source."""
    for folder, target in SHIPPED.items():
        for path in (tree / folder).rglob("*"):
            if path.is_file() and path.suffix != ".md":
                yield f"{target}/{path.relative_to(tree / folder).as_posix()}"


def wheel_files(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]


def metadata_file(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (path for path in archive.namelist() if path.endswith(f".dist-info/{name}"))
        return archive.read(member).decode()


def test_every_folder_with_python_files_is_a_listed_package(tree: Path) -> None:
    folders = {name.rpartition("/")[0] for name in shipped_files(tree) if name.endswith(".py")}

    assert {folder.replace("/", ".") for folder in folders} == set(SETUPTOOLS["packages"])


def test_every_listed_package_can_be_imported_in_a_checkout(tree: Path) -> None:
    """Without an __init__.py, an editable install does not find a folder that the wheel renames."""
    files = set(shipped_files(tree))

    expected = {f"{name.replace('.', '/')}/__init__.py" for name in SETUPTOOLS["packages"]}

    assert expected <= files


def test_the_wheel_holds_exactly_the_files_of_the_checkout(tree: Path, wheel: Path) -> None:
    assert sorted(wheel_files(wheel)) == sorted(shipped_files(tree))


@pytest.mark.parametrize(
    "pattern",
    [
        "cases/test_*.py",
        "conformance.ini",
        "fixtures/golden/*.textproto",
        "protocols/openengine/bindings/*_pb2.pyi",
        "protocols/openengine/proto/openengine/v1/*.proto",
        "py.typed",
        "requirements/*.toml",
        "test_lists/*.yml",
    ],
)
def test_the_wheel_holds_each_kind_of_file(wheel: Path, pattern: str) -> None:
    """The comparison with the checkout is satisfied where both have none."""
    assert [name for name in wheel_files(wheel) if fnmatchcase(name, f"{PACKAGE}/{pattern}")]


def test_the_wheel_names_its_licence_and_carries_it(wheel: Path) -> None:
    metadata = email.message_from_string(metadata_file(wheel, "METADATA"))

    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata_file(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()


def test_dependencies_have_lower_bounds_and_no_caps(wheel: Path) -> None:
    metadata = email.message_from_string(metadata_file(wheel, "METADATA"))
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    installed = [requirement for requirement in requirements if "extra" not in str(requirement.marker)]

    assert {requirement.name for requirement in installed} >= {"pytest", "grpcio", "protobuf"}
    for requirement in installed:
        assert [bound.operator for bound in requirement.specifier] == [">="], requirement


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("console_scripts", ["grpc-conformance"]),
        ("pytest11", ["grpc_conformance"]),
        (f"{PACKAGE}.servers", ["grpcio", "pygrpc-native"]),
        (f"{PACKAGE}.protocols", ["openengine", "smg"]),
    ],
)
def test_the_wheel_declares_its_entry_points(wheel: Path, group: str, names: list[str]) -> None:
    text = metadata_file(wheel, "entry_points.txt")
    section = re.search(rf"^\[{re.escape(group)}\]\n(.*?)(?:^\[|\Z)", text, re.MULTILINE | re.DOTALL)

    assert section, text
    assert re.findall(r"^(\S+) = ", section[1], re.MULTILINE) == names


@pytest.mark.parametrize("group", ENTRY_POINTS)
def test_each_entry_point_leads_somewhere(group: str) -> None:
    for name, value in ENTRY_POINTS[group].items():
        assert EntryPoint(name, value, group).load() is not None


def collected(cwd: Path, pythonpath: Path | None = None) -> list[str]:
    """The cases that pytest finds by the name of the package, less the folder, which installs differ in."""
    output = run(
        *(sys.executable, "-m", "pytest", "--pyargs", f"{PACKAGE}.cases", "--collect-only", "-q"),
        *("-p", "no:cacheprovider", "-p", "no:randomly"),
        cwd=cwd,
        pythonpath=pythonpath,
    )
    return re.findall(r"^(?:.*/)?(test_\w+\.py::.*)$", output, re.MULTILINE)


def where(module: str, cwd: Path, pythonpath: Path | None = None) -> Path:
    code = f"import {module} as module; print(module.__file__)"
    return Path(run(sys.executable, "-c", code, cwd=cwd, pythonpath=pythonpath).strip()).resolve()


def test_the_wheel_has_the_cases_of_the_checkout(wheel: Path, tmp_path: Path) -> None:
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(
        *(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", installed),
        wheel,
    )
    # Each side has to come from where it claims, or one copy would be compared with itself.
    assert where(f"{PACKAGE}.cases", elsewhere, installed).is_relative_to(installed)
    assert where(f"{PACKAGE}.cases", elsewhere).parent == ROOT / "cases", "install with pip install -e ."

    in_checkout = collected(elsewhere)

    assert in_checkout
    assert collected(elsewhere, installed) == in_checkout


def test_there_is_one_version() -> None:
    """A report carries the version of the package; an installer and a user see that of the metadata."""
    try:
        installed = version("pytest-grpc-conformance")
    except PackageNotFoundError:
        pytest.fail("the checkout is not installed: pip install -e '.[test]'")

    assert installed == PYPROJECT["project"]["version"] == __version__
