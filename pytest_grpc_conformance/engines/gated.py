"""The fake engine: it plays prepared scripts, and holds each step of them until the test releases it.

Results are produced on a worker thread and cross to the servicer's event loop as those of a real engine do,
so a servicer meets the same order of things; but nothing is left to time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType

from pytest_grpc_conformance.engines.base import (
    AbortRefused,
    EngineDown,
    EngineError,
    EngineFailure,
    EngineFull,
    InvalidRequest,
)
from pytest_grpc_conformance.engines.course import prompt_as_asked
from pytest_grpc_conformance.engines.gate import EngineMisuse, Gate, GatePosition, check_script
from pytest_grpc_conformance.engines.generation import GatedGeneration
from pytest_grpc_conformance.engines.milestone import DeadlineMissed, Milestone, Noticeboard
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.producer import Item, Plan, Producer, Run
from pytest_grpc_conformance.engines.record import Record
from pytest_grpc_conformance.engines.result_queue import ResultQueue
from pytest_grpc_conformance.engines.script import Prompt, Script
from pytest_grpc_conformance.engines.tokenizer_hold import TokenizerHold

__all__ = [
    "DeadlineMissed",
    "EngineDied",
    "EngineMisuse",
    "Gate",
    "GatePosition",
    "GatedEngine",
    "GatedGeneration",
    "Milestone",
    "Submission",
    "TokenizerHold",
]

_REFUSALS: dict[str, type[EngineError]] = {"invalid": InvalidRequest, "full": EngineFull, "down": EngineDown}
_PLANS_KEPT = 64


class EngineDied(EngineDown, EngineFailure):
    """The engine went down with the request in it: open generations raise it after ``kill`` and ``close``."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What a servicer handed to the engine, exactly as it did."""

    request_id: str
    prompt: Prompt
    parameters: GenerationParameters
    refused: bool = False


class GatedEngine:
    """An engine (``engines.base.Engine``) whose every step the test holds. Use it as a context manager.

    ``prepare`` says what a request will yield and returns the gate that holds it. Requests without a
    prepared script get the one that ``default_script`` makes, with all steps released. At most
    ``max_running`` requests are worked on at a time; the others queue. With ``deltas`` each result shows
    only what is new since the one before, and text that may be part of an excluded stop string is held back
    by the engine. Of ``submissions``, ``aborts`` and ``misuses`` the last ``records`` are kept, by default all.

    ``timeout`` is the deadline of milestones in seconds. The worker thread starts with the first request and
    ends with ``close``. ``submit`` belongs on an event loop; everything else may be used from any thread.
    """

    def __init__(
        self,
        *,
        model: str = "fake-model",
        timeout: float = 10.0,
        eos_token_ids: frozenset[int] = frozenset({2}),
        max_context_tokens: int = 16384,
        vocabulary_size: int = 2**31,
        max_running: int | None = None,
        deltas: bool = False,
        default_script: Callable[[Submission], Script] | None = None,
        records: int | None = None,
    ) -> None:
        self.model = model
        self.timeout = timeout
        self.eos_token_ids = eos_token_ids
        self.max_context_tokens = max_context_tokens
        # Large enough for the candidate ids that ``script.scored`` gives to as many tokens as there may be.
        self.vocabulary_size = vocabulary_size
        self.deltas = deltas
        self.default_script = default_script
        self.healthy = True
        """What health checks are told. It may be set, which changes nothing else."""
        self.submissions = Record[Submission](records)
        """Every submission in order, also those that were refused."""
        self.aborts = Record[str](records)
        """The request id of every ``abort()`` of a handle, in order, also repeated, late and refused ones."""
        self.misuses = Record[str](records)
        """Faults of the test (or of this engine) that only the servicer was told of; to be reported."""
        self._lock = threading.Lock()
        self._board = Noticeboard()
        self._down: str | None = None
        self._waiting: dict[str | None, deque[Gate]] = {}
        self._prepared: list[Gate] = []
        self._plans: dict[int, tuple[Script, GenerationParameters, Plan]] = {}
        # Who wants few records serves for long, and makes a script for each request that is never met again.
        self._plans_kept = _PLANS_KEPT if records is None else min(records, _PLANS_KEPT)
        self._tokenizer = TokenizerHold(self._board, timeout)
        self._producer = Producer(
            lock=self._lock,
            board=self._board,
            owner=self,
            name=f"gated-engine {model}",
            max_running=max_running,
            fault=self.misuses.append,
        )

    def __enter__(self) -> GatedEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # The test's side.

    def prepare(self, request_id: str | None, script: Script, *, open: bool = False) -> Gate:
        """Say what the next submission with this id yields (``None``: the next without a script of its own).

        Several scripts for one id are used in the order in which they were prepared. ``open``: everything is
        released from the start. Raises ``EngineMisuse`` for a script that cannot be played.
        """
        check_script(script)
        gate = self._gate(request_id, script, open=open)
        with self._lock:
            self._waiting.setdefault(request_id, deque()).append(gate)
            self._prepared.append(gate)
        return gate

    @property
    def max_running(self) -> int | None:
        """How many requests are worked on at a time, the others queue; ``None``: all of them.

        It may be set while the engine has no request, else ``EngineMisuse``.
        """
        return self._producer.max_running

    @max_running.setter
    def max_running(self, limit: int | None) -> None:
        with self._lock:
            if self._producer.unsettled:
                raise EngineMisuse("max_running is set before the first request, not while there are some")
            self._producer.max_running = limit

    def hold_tokenizer(self) -> TokenizerHold:
        """From now on prompts stay in the tokenizer, until the hold that this returns is released."""
        self._tokenizer.hold()
        return self._tokenizer

    def kill(self, message: str = "engine died") -> None:
        """Let the engine die: generations raise ``EngineDied`` after what was released, submissions fail."""
        with self._lock:
            self._go_down(message)

    def close(self) -> None:
        """End open generations with ``EngineDied``, join the worker thread, wake all who wait. Idempotent."""
        with self._lock:
            self._go_down("engine closed")
        self._producer.join()
        self._tokenizer.release()
        self._board.close()

    def in_flight(self) -> tuple[str, ...]:
        """Ids of the requests that the engine works on, oldest first; queued and settled ones are not."""
        with self._lock:
            return tuple(str(run.gate.request_id) for run in self._producer.running)

    def queued(self) -> tuple[str, ...]:
        """Ids of the requests that wait for one of the ``max_running`` places, next first."""
        with self._lock:
            return tuple(str(run.gate.request_id) for run in self._producer.queued)

    def idle(self) -> Milestone:
        """The engine has no request, running or queued."""
        return self._milestone("idle()", lambda: not self._producer.unsettled)

    def submitted(self, n: int = 1) -> Milestone:
        """``n`` submissions have been recorded since the start, refused ones included."""
        return self._milestone(f"submitted({n})", lambda: self.submissions.total >= n)

    def positions(self) -> str:
        """Where the gates stand, one line each: all prepared ones, the others while their request runs."""
        with self._lock:
            runs = (*self._producer.running, *self._producer.queued)
            gates = dict.fromkeys((*self._prepared, *(run.gate for run in runs)))
        return "\n".join(map(str, gates)) or "no requests"

    # The servicer's side.

    def tokenize(self, text: str) -> tuple[int, ...]:
        """One id per UTF-8 byte: 3 more than its value (0 to 2 are left to special tokens)."""
        self._tokenizer.enter(text)
        return tuple(3 + byte for byte in text.encode())

    def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> GatedGeneration:
        """Hand over a request, from a running event loop. A prompt that is only text is tokenized.

        Raises ``InvalidRequest``, ``EngineFull`` or ``EngineDown`` as the script's refusal says;
        ``EngineDown`` once the engine is dead or closed; ``InvalidRequest`` for a prompt of more than
        ``max_context_tokens``; and ``EngineMisuse`` without a script, which is kept in ``misuses`` as well,
        as servicers may swallow it.
        """
        results = ResultQueue[Item]()
        submission = Submission(request_id, prompt, parameters)
        gate: Gate | None = None
        try:
            prompt_token_ids = self._admissible(prompt)
            gate = self._gate_for(submission)
            if gate.script.refusal is not None:
                raise _REFUSALS[gate.script.refusal.kind](gate.script.refusal.message)
            generation = self._start(submission, prompt_token_ids, gate, results)
        except (EngineError, EngineMisuse) as error:
            with self._lock:
                self.submissions.append(replace(submission, refused=True))
                if isinstance(error, EngineMisuse):
                    self.misuses.append(str(error))
                if gate is not None:
                    gate.attach(None, None)
                    gate.settle()
            raise
        finally:
            if gate is not None:
                self._board.notice(gate)
            self._board.notice(self)
        return generation

    def _admissible(self, prompt: Prompt) -> tuple[int, ...]:
        self._check_up()
        ids = prompt.token_ids
        if not ids and prompt.text is not None:
            ids = self.tokenize(prompt.text)
        if len(ids) > self.max_context_tokens:
            raise InvalidRequest(
                f"the prompt has {len(ids)} tokens, but the context window holds {self.max_context_tokens}"
            )
        return ids

    def _gate_for(self, submission: Submission) -> Gate:
        with self._lock:
            for key in (submission.request_id, None):
                waiting = self._waiting.get(key)
                if waiting:
                    gate = waiting.popleft()
                    if not waiting:
                        del self._waiting[key]
                    gate.request_id = submission.request_id
                    return gate
        if self.default_script is None:
            raise EngineMisuse(f"no script was prepared for request {submission.request_id!r}")
        try:
            script = self.default_script(submission)
            check_script(script)
        except Exception as error:
            raise EngineMisuse(f"default_script failed for request {submission.request_id!r}: {error!r}") from error
        return self._gate(submission.request_id, script, open=True)

    def _start(
        self,
        submission: Submission,
        prompt_token_ids: tuple[int, ...],
        gate: Gate,
        results: ResultQueue[Item],
    ) -> GatedGeneration:
        parameters = submission.parameters
        plan = self._plan(gate.script, parameters)
        run = Run(gate, plan, results)
        generation = GatedGeneration(
            submission.request_id,
            parameters,
            prompt_token_ids=prompt_token_ids,
            prompt_tokens=prompt_as_asked(gate.script.prompt, parameters.prompt_logprobs),
            num_sequences=plan.num_sequences,
            gate=gate,
            queue=results,
            board=self._board,
            abort=lambda: self._abort(run),
            deltas=self.deltas,
        )
        with self._lock:
            self._check_up()
            self.submissions.append(submission)
            self._producer.add(run)
            gate.attach(generation, lambda: self._producer.wake(run))
        return generation

    def _plan(self, script: Script, parameters: GenerationParameters) -> Plan:
        """The plan for a script; by identity, as comparing long scripts would cost more than it saves."""
        with self._lock:
            known = self._plans.get(id(script))
        if known is not None and known[1] == parameters:
            return known[2]
        plan = Plan(script, parameters, self.eos_token_ids, deltas=self.deltas)
        if not self._plans_kept:
            return plan
        with self._lock:
            if len(self._plans) >= self._plans_kept:
                del self._plans[next(iter(self._plans))]
            # The script is kept with it, so that its id stays its own.
            self._plans[id(script)] = (script, parameters, plan)
        return plan

    def _abort(self, run: Run) -> None:
        gate = run.gate
        with self._lock:
            self.aborts.append(str(gate.request_id))
            refused = gate.take_abort(in_time=not run.ends_by_itself())
        self._board.notice(gate)
        if refused:
            raise AbortRefused(f"the engine does not abort {gate.request_id!r}")

    def _gate(self, request_id: str | None, script: Script, *, open: bool) -> Gate:
        gate = Gate(request_id, script, board=self._board, lock=self._lock, timeout=self.timeout)
        if open:
            gate.released = gate.steps
        return gate

    def _go_down(self, message: str) -> None:
        self.healthy = False
        if self._down is None:
            self._down = message
        self._producer.end_all(lambda: EngineDied(message))

    def _check_up(self) -> None:
        if self._down is not None:
            raise EngineDown(self._down)

    def _milestone(self, name: str, reached: Callable[[], bool]) -> Milestone:
        return Milestone(
            f"{name} of the engine", self.timeout, self._board, self, reached, lambda: "\n" + self.positions()
        )
