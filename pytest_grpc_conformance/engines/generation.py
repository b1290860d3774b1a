"""The handle of a submitted request: what the servicer iterates, aborts and reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_grpc_conformance.engines.base import EngineError, SequenceState
from pytest_grpc_conformance.engines.course import StepResult
from pytest_grpc_conformance.engines.deltas import apply
from pytest_grpc_conformance.engines.gate import Gate
from pytest_grpc_conformance.engines.milestone import Noticeboard
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.result_queue import ResultQueue
from pytest_grpc_conformance.engines.script import Token


@dataclass(frozen=True, slots=True)
class Last:
    """The end of a result stream that no step of the course brings: a result, an error, or neither."""

    result: StepResult | None = None
    error: EngineError | None = None
    is_step: bool = False
    """Whether the gate held it, so that taking it counts."""


class GatedGeneration:
    """A request that ``GatedEngine.submit`` accepted (the shape is ``engines.base.Generation``).

    It is iterated by one consumer on the loop that submitted it, and changes only there, when a result is
    taken: no result is merged with the next. After its end, or after an error, iteration stops at once
    however often.
    """

    __slots__ = (
        "_abort",
        "_board",
        "_deltas",
        "_gate",
        "_over",
        "_queue",
        "cached_tokens",
        "finished",
        "parameters",
        "prompt_token_ids",
        "prompt_tokens",
        "request_id",
        "sequences",
    )

    def __init__(
        self,
        request_id: str,
        parameters: GenerationParameters,
        *,
        prompt_token_ids: tuple[int, ...],
        prompt_tokens: tuple[Token, ...],
        num_sequences: int,
        gate: Gate,
        queue: ResultQueue[StepResult | Last],
        board: Noticeboard,
        abort: Callable[[], None],
        deltas: bool,
    ) -> None:
        self.request_id = request_id
        self.parameters = parameters
        self.prompt_token_ids = prompt_token_ids
        self.prompt_tokens = prompt_tokens
        self.sequences = [SequenceState(index) for index in range(num_sequences)]
        self.cached_tokens = gate.script.cached_tokens
        self.finished = False
        self._gate = gate
        self._queue = queue
        self._board = board
        self._abort = abort
        self._deltas = deltas
        self._over = False

    def __repr__(self) -> str:
        return f"<GatedGeneration {self.request_id!r}: {self._gate.position}>"

    def __aiter__(self) -> GatedGeneration:
        return self

    async def __anext__(self) -> GatedGeneration:
        """Take the next result, and show the state with it.

        Raises ``EngineFailure`` (``EngineDown`` from a dead engine), and ``StopAsyncIteration`` after the
        end.
        """
        if self._over:
            raise StopAsyncIteration
        queue = self._queue
        # What has arrived is taken without a second coroutine: this line is on the path of every token.
        item = queue.arrived.popleft() if queue.arrived else await queue.get()
        if item.__class__ is StepResult:
            self._show(item)
            self._gate.taken += 1
            if self._board.waiting:
                self._board.notice(self._gate)
            return self
        assert isinstance(item, Last)
        return self._end(item)

    def abort(self) -> None:
        """Ask the engine to stop the request. Raises ``AbortRefused`` when the script says so."""
        self._abort()

    def _show(self, result: StepResult) -> None:
        sequences = self.sequences
        if self._deltas:
            # New objects: the servicer may keep what it was shown before.
            sequences = self.sequences = [SequenceState(state.index) for state in sequences]
        for delta in result.deltas:
            apply(delta, sequences[delta.index])
        if result.finished:
            self.finished = self._over = True

    def _end(self, last: Last) -> GatedGeneration:
        self._over = True
        if last.is_step:
            self._gate.taken += 1
            self._board.notice(self._gate)
        if last.error is not None:
            raise last.error
        if last.result is None:
            raise StopAsyncIteration
        self._show(last.result)
        return self
