"""A small engine of the tests' own: plays a course on the event loop, without threads, in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pytest_grpc_conformance.engines.base import AbortRefused, EngineFailure, InvalidRequest, SequenceState
from pytest_grpc_conformance.engines.course import SequenceDelta, StepResult, course, prompt_as_asked
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import (
    AbortConduct,
    Ending,
    Finish,
    FinishReason,
    Prompt,
    Script,
    Token,
)


class ScriptedGeneration:
    """Implements ``engines.base.Generation``. With ``held``, each result waits for ``release``."""

    def __init__(
        self,
        engine: ScriptedEngine,
        request_id: str,
        prompt: Prompt,
        parameters: GenerationParameters,
        script: Script,
        held: bool,
    ) -> None:
        self.request_id = request_id
        self.parameters = parameters
        self.prompt_token_ids = prompt.token_ids
        self.prompt_tokens: tuple[Token, ...] = prompt_as_asked(script.prompt, parameters.prompt_logprobs)
        self.cached_tokens = script.cached_tokens
        self.finished = False
        self.taken = 0
        self.aborts = 0
        self.abort_seen = asyncio.Event()
        played = course(script, parameters, engine.eos_token_ids)
        self.sequences = [SequenceState(index) for index in range(len(played.outcome))]
        self._engine = engine
        self._script = script
        self._results = list(played.results)
        self._ending = played.ending
        self._released = asyncio.Semaphore(0 if held else len(self._results) + 1)
        self._aborted = False

    def release(self, count: int = 1) -> None:
        for _ in range(count):
            self._released.release()

    def __aiter__(self) -> ScriptedGeneration:
        return self

    async def __anext__(self) -> ScriptedGeneration:
        if self.finished:
            raise StopAsyncIteration
        await self._released.acquire()
        if self._aborted:
            if self._script.abort is AbortConduct.SILENT:
                raise StopAsyncIteration
            cancelled = Finish(FinishReason.CANCELLED)
            still_open = [state.index for state in self.sequences if state.finish is None]
            self._show(StepResult(tuple(SequenceDelta(index, finish=cancelled) for index in still_open), True))
        elif self._results:
            self._show(self._results.pop(0))
            self.taken += 1
        elif self._ending is Ending.FAILURE:
            raise self._engine.failure or EngineFailure(self._script.failure)
        else:
            raise StopAsyncIteration
        return self

    def abort(self) -> None:
        self.aborts += 1
        self.abort_seen.set()
        if self._script.abort is AbortConduct.REFUSE:
            raise AbortRefused("refused by the script")
        self._aborted = True
        self.release()

    def _show(self, result: StepResult) -> None:
        for delta in result.deltas:
            state = self.sequences[delta.index]
            if delta.keep_tokens is not None:
                del state.tokens[delta.keep_tokens :], state.text_ends[delta.keep_tokens :]
            if delta.keep_text is not None:
                state.text = state.text[: delta.keep_text]
            state.tokens += delta.tokens
            state.text += delta.text
            state.text_ends += delta.text_ends
            state.finish = delta.finish
        self.finished = result.finished


@dataclass
class ScriptedEngine:
    """Implements ``engines.base.Engine``; what was submitted is in ``generations``, oldest first."""

    model: str = "scripted"
    max_context_tokens: int = 64
    vocabulary_size: int = 1000
    eos_token_ids: frozenset[int] = frozenset({2})
    healthy: bool = True
    script: Script = field(default_factory=Script)
    """Of requests that have none in ``scripts``."""
    scripts: dict[str, Script] = field(default_factory=dict)
    held: bool = False
    refusal: Exception | None = None
    """What a submission raises."""
    failure: Exception | None = None
    """What a script with ``Ending.FAILURE`` raises instead of the engine's usual error."""
    generations: list[ScriptedGeneration] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    submissions: asyncio.Queue[ScriptedGeneration] = field(default_factory=asyncio.Queue)
    """The same generations, to wait for."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        if text == "untokenizable":
            raise InvalidRequest("SECRET /opt/tokenizer.py")
        return tuple(text.encode())

    def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> ScriptedGeneration:
        if self.refusal is not None:
            raise self.refusal
        script = self.scripts.get(request_id, self.script)
        generation = ScriptedGeneration(self, request_id, prompt, parameters, script, self.held)
        self.generations.append(generation)
        self.prompts.append(prompt)
        self.submissions.put_nowait(generation)
        return generation
