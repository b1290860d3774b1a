"""The pytest plugin: hooks only. It stays inert until a conformance option, case or fixture is used."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

pytest_plugins = (
    "pytest_grpc_conformance.fixtures.target",
    "pytest_grpc_conformance.fixtures.library",
    "pytest_grpc_conformance.fixtures.engine",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    from pytest_grpc_conformance import flags

    flags.add_to_parser(parser)


def pytest_configure(config: pytest.Config) -> None:
    from pytest_grpc_conformance import hooks

    hooks.configure(config)


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    try:
        return (yield)
    except pytest.UsageError as error:
        from pytest_grpc_conformance import hooks

        return hooks.exit_code(error)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    from pytest_grpc_conformance import hooks

    hooks.session_start(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    from pytest_grpc_conformance import hooks

    hooks.configure_worker(node)


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    from pytest_grpc_conformance import hooks

    hooks.generate_tests(metafunc)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from pytest_grpc_conformance import hooks

    hooks.leave_out_unserved(config, items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    from pytest_grpc_conformance import hooks

    hooks.make_report(item, call, report)
    return report


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    from pytest_grpc_conformance import hooks

    hooks.unconfigure(config)
