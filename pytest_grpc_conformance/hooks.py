"""What the plugin's hooks do. Everything heavy is imported only once a conformance option, case or fixture is used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_grpc_conformance.shared import CASES, CHOICE_FIXTURE, LIBRARY_FIXTURE, RUN, CannotJudge

if TYPE_CHECKING:
    from pytest_grpc_conformance.collection import Case
    from pytest_grpc_conformance.session import Run

SERVER_FIXTURES = "pytest_grpc_conformance.fixtures.server"
PYTEST_GRPC = "pytest_grpc.plugin"
"""Another plugin with a ``grpc_server`` fixture. Where it is installed its users keep theirs, unless they name ours in
``pytest_plugins``."""

_NO_CALL = SimpleNamespace(params={})
CASE = pytest.StashKey["Case | None"]()


def exit_code(error: pytest.UsageError) -> int:
    """The exit code for a run that cannot judge, after one message; any other usage error is pytest's to tell."""
    if not isinstance(error.__cause__, CannotJudge):
        raise error
    print(f"ERROR: {error}", file=sys.stderr)
    return 1


def configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "requirement(*ids, needs=()): the requirement rows that a conformance case checks"
    )
    config.addinivalue_line("markers", "destructive: can harm a live server; runs against servers in this process only")
    config.addinivalue_line("markers", "nightly: takes long; runs with --grpc-nightly only")
    others = {getattr(plugin, "__name__", "") for plugin in config.pluginmanager.get_plugins()}
    if PYTEST_GRPC not in others:
        config.pluginmanager.import_plugin(SERVER_FIXTURES)
    config.pluginmanager.register(Recorder(config), "grpc_conformance_recorder")


def session_start(config: pytest.Config) -> None:
    given = (value for name, value in vars(config.option).items() if name.startswith("grpc_"))
    chosen = any(value not in (None, False) for value in given)  # An empty value is one, which is told to be wrong.
    if not chosen and not any(argument.startswith(CASES) for argument in config.args):
        return
    from pytest_grpc_conformance import session

    session.refuse_update_golden(config)
    session.start(config)


def configure_worker(node: Any) -> None:
    """Tell an xdist worker where the server listens that the controller has started or reached."""
    run = node.config.stash.get(RUN, None)
    if run is not None:
        node.workerinput["grpc_conformance"] = (run.address, run.model)


def generate_tests(metafunc: pytest.Metafunc) -> None:
    if CHOICE_FIXTURE in metafunc.fixturenames or LIBRARY_FIXTURE in metafunc.fixturenames:
        from pytest_grpc_conformance import collection, session

        try:
            options = session.run_of(metafunc.config).options
        except pytest.UsageError as error:
            # pytest shows this error of a collector as it is, and any other with a traceback.
            raise pytest.Collector.CollectError(str(error)) from error
        collection.parametrize(metafunc, options)


def leave_out_unserved(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A case that checks rows of other protocols only is no part of the run."""
    if RUN not in config.stash:
        return
    unserved = [item for item in items if getattr(item, "callspec", _NO_CALL).params.get(CHOICE_FIXTURE, 0) is None]
    if unserved:
        config.hook.pytest_deselected(items=unserved)
        items[:] = [item for item in items if item not in set(unserved)]


def case_of(item: pytest.Item) -> Case | None:
    """The conformance case that an item is, looked up once."""
    if CASE not in item.stash:
        if not hasattr(item, "callspec") or CHOICE_FIXTURE not in item.callspec.params:
            item.stash[CASE] = None
        else:
            from pytest_grpc_conformance import collection

            item.stash[CASE] = case = collection.case_of(item)
            if case is not None:
                item.user_properties.append(("case_id", case.case_id))
                item.user_properties.append(("requirements", " ".join(case.requirements)))
    return item.stash[CASE]


def make_report(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    case = case_of(item)
    if case is not None:
        from pytest_grpc_conformance import judging, session

        judging.observe(item, case, call, report, session.run_of(item.config))


class Recorder:
    """Gathers the results on the controller and shows them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: Any) -> None:
        if hasattr(report, "grpc_conformance") and not hasattr(self._config, "workerinput"):
            from pytest_grpc_conformance import judging, session

            result = judging.result_of(report)
            assert result is not None
            session.run_of(self._config).results.append(result)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        run = self._config.stash.get(RUN, None)
        if run is None or not run.results:
            return
        from pytest_grpc_conformance.reports import terminal

        document = run.document()
        terminalreporter.section(f"gRPC conformance {document.suite_version}")
        for line in terminal.render(document):
            terminalreporter.write_line(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        run = self._config.stash.get(RUN, None)
        if run is None or hasattr(self._config, "workerinput"):
            return
        if session.exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            run.notes.append("the run did not come to its end; cases are missing here")
        if run.process is not None and not run.process.alive:
            run.notes += run.process.obituary().splitlines()
            session.exitstatus = session.exitstatus or 1
        if not all(result.verdict.conforms for result in run.results):
            # pytest knows that already, but for what it takes for harmless, such as a skip in a tear-down.
            session.exitstatus = session.exitstatus or 1
        if run.options.report is not None:
            self._write_report(run, run.options.report, session)

    def _write_report(self, run: Run, path: str, session: pytest.Session) -> None:
        text = json.dumps(run.document().to_data(), indent=1)
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            # The results stay on the terminal; a run whose report is missing is not a success.
            run.notes.append(f"cannot write --grpc-report {path}: {error.strerror}")
            session.exitstatus = session.exitstatus or 1


def unconfigure(config: pytest.Config) -> None:
    run = config.stash.get(RUN, None)
    if run is not None:
        run.close()
