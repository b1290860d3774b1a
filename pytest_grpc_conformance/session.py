"""What a run of conformance cases holds: the options, the server loop, the launched process, and the results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from pytest_grpc_conformance import __version__, registry
from pytest_grpc_conformance.options import Options
from pytest_grpc_conformance.reports.document import Document, Result, ordered
from pytest_grpc_conformance.shared import RUN, CannotJudge

if TYPE_CHECKING:
    from pytest_grpc_conformance.collection import TargetChoice
    from pytest_grpc_conformance.targets.base import Target
    from pytest_grpc_conformance.targets.launched import LaunchedProcess
    from pytest_grpc_conformance.targets.library import LibraryTarget
    from pytest_grpc_conformance.targets.loop_thread import LoopThread
    from pytest_grpc_conformance.targets.plan import TargetPlan


@dataclass(slots=True)
class Run:
    """The state of one pytest run, on the controller or on a worker."""

    options: Options
    results: list[Result] = field(default_factory=list)
    plan: TargetPlan | None = None
    address: str = ""
    """Where a launched or given server listens."""
    model: str = ""
    process: LaunchedProcess | None = None
    notes: list[str] = field(default_factory=list)
    """Lines that the summary must show."""
    _loop: LoopThread | None = None

    @property
    def loop(self) -> LoopThread:
        """The loop on which in-process servers run; a new one when a servicer under test has blocked the last."""
        from pytest_grpc_conformance.targets.loop_thread import LoopThread

        if self._loop is None or not self._loop.alive:
            self._loop = LoopThread()
        return self._loop

    @contextlib.contextmanager
    def leaving_a_stuck_loop(self) -> Iterator[None]:
        """Leave a loop that turns out to be blocked to its daemon thread, so that later tests get one that works."""
        from pytest_grpc_conformance.targets.loop_thread import LoopStuck

        try:
            yield
        except LoopStuck:
            self._loop = None
            raise

    # Start and end.

    def check_required(self) -> None:
        """Raises ``CannotJudge`` for the first required library that cannot be used here."""
        for name in sorted(self.options.require):
            found = registry.server_library(name).availability()
            if not found.available:
                raise CannotJudge(f"--grpc-require {name}: {found.reason}; {found.remedy}")

    def open_target(self) -> None:
        """Start or reach the target of ``--grpc-command`` or ``--grpc-address``, or load ``--grpc-target``.

        Raises ``CannotJudge`` or ``BadPlan``.
        """
        from pytest_grpc_conformance.targets.base import TargetBroken

        if self.options.target is not None:
            from pytest_grpc_conformance.targets.plan import load_plan, try_out

            self.plan = load_plan(self.options.target)
            try_out(self.options.target, self.plan)
        if self.options.in_process:
            return
        from pytest_grpc_conformance.targets.endpoint import probe
        from pytest_grpc_conformance.targets.launched import LaunchedProcess

        try:
            if self.options.command is not None:
                self.process = LaunchedProcess(self.options.command, ready_timeout=self.options.ready_timeout).start()
            self.address = self.process.address if self.process else self.options.address or ""
            wire = registry.protocol(self.options.protocols[0])
            self.model = probe(self.address, wire, self.options.timeout)
        except TargetBroken as error:
            self.close()
            raise CannotJudge(str(error)) from error

    def close(self) -> None:
        """Stop what this run started."""
        process, self.process = self.process, None
        if process is not None:
            process.stop()
        loop, self._loop = self._loop, None
        if loop is not None:
            # A loop that is blocked by now cannot be helped; its daemon thread ends with the process.
            with contextlib.suppress(TimeoutError):
                loop.close()

    # Targets for cases.

    def target(self, choice: TargetChoice) -> Target:
        """A target of a case's own, started. Raises ``NotApplicable`` or ``TargetBroken``."""
        from pytest_grpc_conformance.targets.base import NotApplicable, TargetBroken

        wire = registry.protocol(choice.protocol)
        if not self.options.in_process:
            from pytest_grpc_conformance.targets.endpoint import EndpointTarget, check_listens

            if self.process is not None and not self.process.alive:
                raise TargetBroken(self.process.death())
            check_listens(self.address, self.options.timeout)
            return EndpointTarget(
                self.address, wire, timeout=self.options.timeout, model=self.model, name=choice.target
            )
        library = registry.server_library(choice.target)
        found = library.availability()
        if not found.available:
            raise NotApplicable("library-missing", f"{found.reason}; {found.remedy}")
        from pytest_grpc_conformance.targets.inprocess import InprocessTarget

        target = InprocessTarget(library, wire, self.loop, timeout=self.options.timeout, plan=self.plan)
        with self.leaving_a_stuck_loop():
            try:
                return target.start()
            except BaseException:
                target.close()
                raise

    def library_target(self, choice: TargetChoice) -> LibraryTarget:
        """A server library for a case about the library itself. Raises ``NotApplicable``."""
        from pytest_grpc_conformance.servers.grpcio import GrpcioAio
        from pytest_grpc_conformance.targets.base import NotApplicable
        from pytest_grpc_conformance.targets.library import LibraryTarget

        library = registry.server_library(choice.target)
        found = library.availability()
        if found.available:
            found = library.whole()
        if not found.available:
            raise NotApplicable("library-missing", f"{found.reason}; {found.remedy}")
        if self.plan is not None:
            if self.plan.library is None:
                raise NotApplicable("own-handlers", "the case serves handlers of its own; the target brings servicers")
            library = self.plan.library
        return LibraryTarget(
            library,
            GrpcioAio(),
            self.loop,
            timeout=self.options.timeout,
            nightly=self.options.nightly,
            plan=self.options.target,
        )

    # Results.

    def document(self) -> Document:
        """All results so far."""
        return Document(__version__, self._targets(), ordered(self.results), tuple(self.notes))

    def _targets(self) -> tuple[tuple[str, str], ...]:
        if not self.options.in_process:
            name = "command" if self.options.command is not None else "address"
            return ((name, self.address),)
        named = []
        for name in self.options.servers:
            found = registry.server_library(name).availability()
            named.append((name, found.version or "(missing)"))
        return tuple(named)

    def version_of(self, target: str) -> str | None:
        """The version of the server library under test, ``None`` where it is not known."""
        if not self.options.in_process or (self.plan is not None and self.plan.library is not None):
            return None
        return registry.server_library(target).availability().version


def run_of(config: pytest.Config) -> Run:
    """The run's state, made at first use. Raises ``pytest.UsageError`` for options that cannot be used."""
    if RUN not in config.stash:
        config.stash[RUN] = Run(_options(config))
    return config.stash[RUN]


def _options(config: pytest.Config) -> Options:
    from pytest_grpc_conformance import options

    try:
        return options.read(config)
    except (options.BadOption, registry.UnknownName, registry.BrokenEntryPoint) as error:
        raise pytest.UsageError(str(error)) from error


def start(config: pytest.Config) -> None:
    """Check what was asked for before anything is built; on the controller, start or reach the target."""
    run = run_of(config)
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    from pytest_grpc_conformance.targets.plan import BadPlan

    try:
        if worker is not None and not run.options.in_process:
            run.address, run.model = worker["grpc_conformance"]
            return
        run.check_required()
        run.open_target()
    except BadPlan as error:
        raise pytest.UsageError(f"--grpc-target: {error}") from error
    except CannotJudge as error:
        # pytest ends at once and quietly for this error; the plugin changes the exit code to 1 on its way out.
        raise pytest.UsageError(str(error)) from error


def refuse_update_golden(config: pytest.Config) -> None:
    """Golden files are written by one process that a person looks at; anything else is a usage error."""
    if not run_of(config).options.update_golden:
        return
    if hasattr(config, "workerinput") or getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--grpc-update-golden writes files and does not go with xdist; leave -n out")
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        raise pytest.UsageError("--grpc-update-golden is refused in CI; run it by hand and review what changed")
