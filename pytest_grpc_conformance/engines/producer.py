"""The worker thread of the fake engine: it produces what is released, and hands it to the event loops."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from itertools import repeat

from pytest_grpc_conformance.engines.base import EngineError, EngineFailure, EngineFull, InvalidRequest
from pytest_grpc_conformance.engines.course import StepResult, cancelled_course, course
from pytest_grpc_conformance.engines.deltas import only_new
from pytest_grpc_conformance.engines.gate import Gate
from pytest_grpc_conformance.engines.generation import Last
from pytest_grpc_conformance.engines.milestone import Noticeboard
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.result_queue import ConsumerGone, ResultQueue, deliver
from pytest_grpc_conformance.engines.script import AbortConduct, Ending, Script

Item = StepResult | Last
_FAILURES: dict[str, type[EngineError]] = {"failure": EngineFailure, "invalid": InvalidRequest, "full": EngineFull}


class Plan:
    """What a script yields under the parameters of a request; requests that are alike share one."""

    def __init__(
        self, script: Script, parameters: GenerationParameters, eos_token_ids: frozenset[int], *, deltas: bool
    ) -> None:
        whole = course(script, parameters, eos_token_ids)
        self.results = only_new(whole.results, parameters) if deltas else whole.results
        self.ending = whole.ending
        self.num_sequences = len(whole.outcome)
        self._script = script
        self._parameters = parameters
        self._eos_token_ids = eos_token_ids
        self._deltas = deltas

    def items(self) -> tuple[Item, ...]:
        """The results in order, and the ending that is a step of its own."""
        if self.ending is None:
            return self.results
        failed = self.ending is Ending.FAILURE
        error = _FAILURES[self._script.failure_kind](self._script.failure) if failed else None
        return (*self.results, Last(error=error, is_step=True))

    def cancelled(self, steps: int) -> StepResult:
        """The result with which an abort after ``steps`` steps ends the request."""
        results = cancelled_course(self._script, self._parameters, self._eos_token_ids, steps=steps).results
        return (only_new(results, self._parameters) if self._deltas else results)[-1]


class Run:
    """One accepted request inside the engine. The engine's lock guards it."""

    def __init__(self, gate: Gate, plan: Plan, results: ResultQueue[Item]) -> None:
        self.gate = gate
        self.queue = results
        self.admitted = False
        self.over = False
        """The last item has been produced."""
        self.error: EngineError | None = None
        """What ends it when the engine goes down."""
        self._plan = plan
        self._items = plan.items()

    def ends_by_itself(self) -> bool:
        """Whether nothing changes its end any more: its last step is released, or it is ended."""
        return self.over or self.gate.end_at is not None or (self.admitted and self.gate.released >= len(self._items))

    def produce(self, batch: list[tuple[ResultQueue[Item], Item]]) -> None:
        """Add to ``batch`` what is due now."""
        gate, items = self.gate, self._items
        due = 0
        if self.admitted:
            due = min(gate.released if gate.end_at is None else gate.end_at, len(items))
        if due > gate.produced:
            batch.extend(zip(repeat(self.queue), items[gate.produced : due], strict=False))
            gate.produced = due
        if due == len(items):
            self.over = True
        elif gate.end_at is not None:
            self.over = True
            batch.append((self.queue, self._last(due)))

    def _last(self, steps: int) -> Last:
        if self.error is not None:
            return Last(error=self.error)
        if self.gate.script.abort is AbortConduct.SILENT:
            return Last()
        return Last(result=self._plan.cancelled(steps))


class Producer:
    """Runs requests on one thread, ``max_running`` at a time, the others in order after them.

    It tells ``board`` about each gate whose request settles, and about ``owner`` when any does. ``fault``
    is called with what went wrong inside the engine itself.
    """

    def __init__(
        self,
        *,
        lock: threading.Lock,
        board: Noticeboard,
        owner: object,
        name: str,
        max_running: int | None,
        fault: Callable[[str], None],
    ) -> None:
        self.running: dict[Run, None] = {}
        self.queued: dict[Run, None] = {}
        self.unsettled = 0
        """Requests that are running or queued."""
        self.max_running = max_running
        self._lock = lock
        self._board = board
        self._owner = owner
        self._name = name
        self._fault = fault
        self._woken: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, run: Run) -> None:
        """Take a request in, with the lock held; the first one starts the thread."""
        self.unsettled += 1
        self.queued[run] = None
        self._admit()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def wake(self, run: Run) -> None:
        """Look at a request again, as something has changed for it."""
        self._woken.put(run)

    def end_all(self, error: Callable[[], EngineError]) -> None:
        """With the lock held, end every request with an error, after the steps that are released."""
        for run in (*self.running, *self.queued):
            if not run.ends_by_itself():
                run.error = error()
                run.gate.end_here()

    def join(self) -> None:
        """Stop the thread once it has done what it was woken for, and wait for that. Idempotent."""
        thread = self._thread
        if thread is not None:
            self._woken.put(None)
            thread.join()

    def _work(self) -> None:
        while True:
            # Whatever has come up meanwhile goes into the same batch.
            woken: dict[Run | None, None] = {self._woken.get(): None}
            try:
                while True:
                    woken[self._woken.get_nowait()] = None
            except queue.Empty:
                pass
            runs: list[Run] = [run for run in woken if run is not None]
            while runs:
                runs = self._settle(self._produce(runs))
            if None in woken:
                return

    def _produce(self, runs: Iterable[Run]) -> list[Run]:
        """Produce and deliver what is due; the requests that are over with it."""
        batch: list[tuple[ResultQueue[Item], Item]] = []
        over: list[Run] = []
        with self._lock:
            for run in runs:
                if run.over:
                    continue
                try:
                    run.produce(batch)
                except Exception as error:  # the others must get theirs
                    run.over = True
                    batch.append((run.queue, Last(error=EngineFailure("the fake engine failed"))))
                    self._fault(f"the fake engine failed on request {run.gate.request_id!r}: {error!r}")
                if run.over:
                    over.append(run)
        try:
            deliver(batch)
        except ConsumerGone as gone:
            lost = [run for run in runs if run.queue in gone.queues and run not in over]
            for run in lost:
                run.over = True
            over += lost
        return over

    def _settle(self, over: list[Run]) -> list[Run]:
        """Let go of requests; those that are admitted in their place."""
        if not over:
            return []
        with self._lock:
            for run in over:
                self.running.pop(run, None)
                self.queued.pop(run, None)
                run.gate.settle()
            self.unsettled -= len(over)
            admitted = self._admit()
        for run in over:
            self._board.notice(run.gate)
        self._board.notice(self._owner)
        return admitted

    def _admit(self) -> list[Run]:
        admitted: list[Run] = []
        while self.queued and (self.max_running is None or len(self.running) < self.max_running):
            run = next(iter(self.queued))
            del self.queued[run]
            self.running[run] = None
            run.admitted = True
            admitted.append(run)
        return admitted
