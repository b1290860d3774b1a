"""``grpc-conformance``: its commands, what it refuses, and how it ends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pytest_grpc_conformance import __version__
from pytest_grpc_conformance.requirements import catalogue
from tests.running import Ran, cli_command, environment, run_cli

PLUGINS = {"PYTEST_PLUGINS": "pytest_grpc_conformance.plugin"}


def cli(folder: Path, *arguments: str, **changes: str) -> Ran:
    return run_cli(folder, *arguments, changes={**PLUGINS, **changes})


def test_version_and_help(tmp_path: Path) -> None:
    assert cli(tmp_path, "--version").out == f"pytest-grpc-conformance {__version__}\n"
    told = cli(tmp_path, "--help")
    assert told.code == 0
    for command in ("run", "serve", "requirements", "bench"):
        assert f"\n    {command} " in told.out or f"\n    {command}\n" in told.out
    serve = cli(tmp_path, "serve", "--help")
    assert "one of openengine, smg" in serve.out
    assert "one of grpcio, pygrpc-native" in serve.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["frobnicate"], "invalid choice: 'frobnicate' (choose from"),
        (["requirements", "--all"], "unknown argument '--all'; see grpc-conformance requirements --help"),
        (["requirements", "extra"], "unknown argument 'extra'"),
        (["serve"], "the following arguments are required: --protocol"),
        (["serve", "--protocol", "sgm"], "unknown protocol 'sgm' (did you mean smg?); legal names: openengine, smg"),
        (["serve", "--protocol", "smg", "--server", "grpcoi"], "unknown server 'grpcoi' (did you mean grpcio?)"),
        (["serve", "--protocol", "smg", "--port", "65536"], "'65536' is not a port (0 to 65535)"),
        (["serve", "--protocol", "smg", "--port", "http"], "'http' is not a port"),
        (["serve", "--protocol", "smg", "--grace", "-1"], "'-1' is not a number of seconds"),
        (["serve", "--protocol", "smg", "--grace", "nan"], "'nan' is not a number of seconds"),
        (["serve", "--protocol", "smg", "--verbose"], "unknown argument '--verbose'"),
        (["bench", "--rounds", "0"], "'0' is not a number from 1 on"),
    ],
    ids=lambda value: "-".join(value).replace("--", "") or "nothing" if isinstance(value, list) else "",
)
def test_wrong_command_line_is_told_in_one_line(tmp_path: Path, arguments: list[str], told: str) -> None:
    result = cli(tmp_path, *arguments)
    assert result.code == 4
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert result.err.startswith("grpc-conformance")
    assert told in result.err


@pytest.mark.parametrize("arguments", [("--help",), ("-n", "2", "-h")], ids="-".join)
def test_help_of_run_is_about_our_options_with_their_legal_values(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    told = cli(tmp_path, "run", *arguments)
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith("usage: grpc-conformance run [OPTION ...] [CASE ...]\n")
    for name in ("server", "protocol", "require", "target", "command", "address", "timeout-scale", "ready-timeout"):
        assert f"\n  --grpc-{name} " in told.out
    assert "--grpc-server, --grpc-require   grpcio, pygrpc-native\n" in told.out
    assert "--grpc-protocol                 openengine, smg, grpc\n" in told.out
    assert "see pytest --help" in told.out
    assert "--tb" not in told.out, "that is pytest's"
    assert len(told.out.splitlines()) < 60


def test_run_hands_its_arguments_to_pytest(tmp_path: Path) -> None:
    listing = cli(
        tmp_path, "run", "--collect-only", "-q", "-k", "first_token_arrives_while_the_second", "--grpc-server=grpcio"
    )
    assert listing.code == 0
    names = [line for line in listing.out.splitlines() if "::" in line]
    assert [name.partition("[")[2] for name in names] == ["grpcio-openengine]", "grpcio-smg]"]
    assert cli(tmp_path, "run", "--no-such-option").code == 4
    assert cli(tmp_path, "run", "-k", "no_such_case", "-q").code == 5


@pytest.mark.parametrize("changes", [PLUGINS, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}], ids=["alone", "all-plugins"])
@pytest.mark.parametrize("more", [(), ("-p", "no:asyncio")], ids=["", "no-asyncio"])
def test_run_warns_of_nothing_whichever_plugins_are_there(
    tmp_path: Path, more: tuple[str, ...], changes: dict[str, str]
) -> None:
    chosen = ("-k", "first_token_arrives_while_the_second", "--grpc-protocol", "smg", "--grpc-server", "grpcio")
    result = run_cli(tmp_path, "run", "-q", *chosen, "-p", "no:cacheprovider", *more, changes=changes)
    assert result.code == 0
    assert "warning" not in result.text.lower()
    assert "1 result: 1 passed" in result.out


def test_run_of_one_case_by_its_name_runs_that_only(tmp_path: Path) -> None:
    case = "first_token_arrives_while_the_second_is_held[grpcio-smg]"
    result = cli(
        tmp_path, "run", f"pytest_grpc_conformance.cases.test_first_token::test_{case}", "-p", "no:cacheprovider"
    )
    assert result.results() == "1 passed"
    assert "1 result: 1 passed" in result.out


def test_requirements_lists_every_row_with_its_cases_or_as_unchecked(tmp_path: Path) -> None:
    text, short, data = (cli(tmp_path, "requirements", *given) for given in ((), ("--unchecked",), ("--json",)))
    assert (text.code, short.code, data.code) == (0, 0, 0)
    lines = {words[0]: line for line in text.out.splitlines() if (words := line.split())}
    assert all(row.id in lines for row in catalogue().rows)
    assert "first_token/first_token_arrives_while_the_second_is_held[openengine]" in lines["OE-GEN-018"]
    assert "first_token/first_token_arrives_while_the_second_is_held[smg]" in lines["SMG-GEN-016"]
    assert f"{len(catalogue().rows)} rows: " in text.out.splitlines()[-1]

    found = json.loads(data.out)
    rows = [row for group in found["groups"] for row in group["rows"]]
    assert [row["id"] for row in rows] == [row.id for row in catalogue().rows]
    checked = next(row for row in rows if row["id"] == "OE-GEN-018")
    assert {"id", "summary"} == set(checked["cases"][0])

    without = [row["id"] for row in rows if not row["cases"]]
    assert "OE-GEN-018 " not in short.out
    assert [row for row in without if f"  {row} " not in short.out] == []
    assert sum(found["counts"]["unchecked"].values()) == len(without)
    assert short.out.splitlines()[-1] == text.out.splitlines()[-1]


def test_listing_does_not_depend_on_what_else_pytest_is_told(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -k nothing\npython_files = check_*.py\n")
    told = cli(tmp_path, "requirements", "--unchecked", PYTEST_ADDOPTS="-k nothing --maxfail=1")
    assert told.code == 0
    assert "OE-GEN-018 " not in told.out
    assert " 0 checked" not in told.out.splitlines()[-1]


def test_cases_that_cannot_be_collected_are_told_in_few_lines(tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text("def pytest_collection_modifyitems(items):\n    raise RuntimeError('oops')\n")
    told = cli(
        tmp_path, "requirements", PYTEST_PLUGINS="pytest_grpc_conformance.plugin,breaks", PYTHONPATH=str(tmp_path)
    )
    assert told.code == 1
    assert told.out == ""
    assert told.err.startswith("grpc-conformance: the cases cannot be listed: ")
    assert "RuntimeError: oops" in told.err
    assert len(told.err.splitlines()) <= 6


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["requirements"],
        ["run", "--help"],
        ["run", "-v", "-k", "first_token_arrives_while_the_second", "-p", "no:cacheprovider"],
    ],
    ids="-".join,
)
def test_reader_that_has_seen_enough_causes_no_traceback(tmp_path: Path, arguments: list[str]) -> None:
    process = subprocess.Popen(
        cli_command(*arguments),
        cwd=tmp_path,
        env=environment({**PLUGINS, "PYTHONUNBUFFERED": "1"}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdout.close()
        told = process.stderr.read()
        assert process.wait(60) in (0, 1), "argparse takes a help text that nobody reads for a success"
    assert "Traceback" not in told
    assert "BrokenPipeError" not in told
    assert "Exception ignored" not in told
