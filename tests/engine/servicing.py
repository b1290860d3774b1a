"""What a servicer does with the fake engine, in a few words for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytest_grpc_conformance.engines.gated import GatedEngine, GatedGeneration
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import (
    Finish,
    FinishReason,
    Prompt,
    Script,
    one_by_one,
    pieces,
    script,
)

PROMPT = Prompt((1, 2, 3))
LENGTH = Finish(FinishReason.LENGTH)
CANCELLED = Finish(FinishReason.CANCELLED)


@dataclass
class Received:
    """What iteration gave: the first sequence after each result, and how it ended."""

    texts: list[str] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    finishes: list[Finish | None] = field(default_factory=list)
    error: BaseException | None = None


def words(*texts: str) -> Script:
    """One token a step, with these texts."""
    return script(one_by_one(pieces(*texts)))


def submit_now(engine: GatedEngine, request_id: str = "r1", prompt: Prompt = PROMPT, **asked: Any) -> GatedGeneration:
    """Submit from the running loop."""
    return engine.submit(request_id, prompt, GenerationParameters(**asked))


async def submit(engine: GatedEngine, request_id: str = "r1", prompt: Prompt = PROMPT, **asked: Any) -> GatedGeneration:
    return submit_now(engine, request_id, prompt, **asked)


async def take(generation: GatedGeneration, results: int | None = None) -> Received:
    """Iterate: ``results`` times, or to the end."""
    received = Received()
    try:
        while results is None or len(received.texts) < results:
            state = (await anext(generation)).sequences[0]
            received.texts.append(state.text)
            received.tokens.append(tuple(token.id for token in state.tokens))
            received.finishes.append(state.finish)
    except StopAsyncIteration:
        pass
    except Exception as error:
        received.error = error
    return received


async def serve(engine: GatedEngine, request_id: str = "r1", **asked: Any) -> Received:
    """Submit and take everything."""
    return await take(submit_now(engine, request_id, **asked))
