"""What a servicer may ask of an engine: the shape that every engine behind a reference servicer has.

The shape is that of TensorRT-LLM's ``LLM``: submission is synchronous and refuses bad requests, the handle that it
returns is an async iterator that yields itself, and after each result the handle shows the whole state so far.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Finish, Prompt, Token


class EngineError(Exception):
    """Something that an engine reports to its servicer; the message is the engine's own text."""


class InvalidRequest(EngineError, ValueError):
    """The engine refuses a submission because the request cannot be served as it is (kind ``invalid``)."""


class EngineFull(EngineError):
    """The engine refuses a submission because it has no room now; the same request may pass later (kind ``full``)."""


class EngineDown(EngineError, RuntimeError):
    """The engine is shut down or dead (kind ``down``)."""


class EngineFailure(EngineError, RuntimeError):
    """An accepted request failed inside the engine."""


class AbortRefused(EngineError, RuntimeError):
    """The engine does not carry out an abort; the request runs on."""


@dataclass(slots=True)
class SequenceState:
    """One sequence as far as the engine has come.

    ``text_ends[k]`` is the length of ``text`` (in characters) once token ``k`` had been decoded, so token ``k`` covers
    ``text[text_ends[k - 1]:text_ends[k]]``. All lists may shrink in the last result, when a stop is trimmed.
    """

    index: int
    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    text_ends: list[int] = field(default_factory=list)
    finish: Finish | None = None


class Generation(Protocol):
    """A submitted request. Iterate it on the loop that submitted it; each result shows the state so far.

    Iteration ends after the result in which ``finished`` is true, or without it when the engine lost the request; it
    raises ``EngineFailure`` when the engine failed the request, and ``EngineFull`` or ``InvalidRequest`` when it
    dropped it after all for lack of room or as one that cannot be served.
    """

    @property
    def request_id(self) -> str: ...

    @property
    def parameters(self) -> GenerationParameters: ...

    @property
    def prompt_token_ids(self) -> tuple[int, ...]: ...

    @property
    def prompt_tokens(self) -> tuple[Token, ...]:
        """The prompt's tokens with scores when the request asked for them, else empty."""
        ...

    @property
    def sequences(self) -> Sequence[SequenceState]:
        """One state per sequence, in index order; with a delta engine, only what the last result added."""
        ...

    @property
    def cached_tokens(self) -> int | None: ...

    @property
    def finished(self) -> bool: ...

    def __aiter__(self) -> AsyncIterator[Generation]: ...

    def abort(self) -> None:
        """Ask the engine to stop; legal at any time and more than once. Raises ``AbortRefused``."""
        ...


class Engine(Protocol):
    """What produces tokens."""

    @property
    def model(self) -> str:
        """The name under which the engine's model is served."""
        ...

    @property
    def max_context_tokens(self) -> int: ...

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def healthy(self) -> bool: ...

    def tokenize(self, text: str) -> tuple[int, ...]: ...

    def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> Generation:
        """Hand a request to the engine, from a running event loop.

        Raises ``InvalidRequest``, ``EngineFull`` or ``EngineDown``; then nothing was queued.
        """
        ...
