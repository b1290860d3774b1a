"""Faults in the scores of prompt tokens: shifted, incomplete, repeated, late, or from another position."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc

from pytest_grpc_conformance.engines.script import Script
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import (
    Alteration,
    asked,
    each,
    engine_told,
    has_tokens,
    is_end,
    kind,
    streamed,
    with_scores_of,
)
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault


def _prompt_records(message: Message) -> Any:
    """The repeated field with the prompt's tokens, empty where a message has none."""
    if kind(message) == "prompt":
        return message.prompt.tokens
    return message.complete.prompt_logprobs if kind(message) == "complete" else []


def _shifted_prompt(script: Script) -> Script:
    tokens = script.prompt
    others = (*tokens[1:], *tokens[:1])
    return script.but(prompt=tuple(map(with_scores_of, tokens, others)))


def _lose_last(message: Message) -> None:
    records = _prompt_records(message)
    if records:
        del records[-1]


def _score_first(message: Message) -> None:
    if kind(message) == "prompt":
        message.prompt.tokens[0].logprob = -0.5


def _repeated_prompt(call: Call) -> Alteration:
    prompts: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        if kind(message) == "prompt":
            prompts.append(message)
            return (message,)
        return (*prompts, message) if has_tokens(message) else (message,)

    return step


def _late_prompt(call: Call) -> Alteration:
    held: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        if kind(message) == "prompt":
            held.append(message)
            return ()
        return (*held, message) if is_end(message) else (message,)

    return step


prompt_scores_are_shifted_by_one = Mutant(engine=engine_told(_shifted_prompt))
prompt_loses_its_last_token = Mutant(generate=each(_lose_last))
first_prompt_token_is_scored = Mutant(generate=each(_score_first))
prompt_comes_with_every_token = Mutant(generate=streamed(_repeated_prompt))
prompt_comes_at_the_end = Mutant(generate=streamed(_late_prompt))
first_scored_position_is_ignored = Mutant(
    generate=asked(lambda request: request.response.ClearField("prompt_logprob_start"))
)


async def _refuse_start(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    if call.request.response.HasField("prompt_logprob_start"):
        await call.context.abort(grpc.StatusCode.UNIMPLEMENTED, "prompt_logprob_start is not supported")
    async for message in messages:
        yield message


first_scored_position_is_always_refused = Mutant(generate=_refuse_start)

OPENENGINE = ("openengine",)
SMG = ("smg",)

FAULTS = (
    Fault(
        "prompt_loses_its_last_token",
        caught_by={"logprobs/prompt_is_listed_whole": "OE-LP-008 SMG-LP-006"},
    ),
    Fault(
        "prompt_loses_its_last_token",
        caught_by={"logprobs/prompt_of_several_sequences_is_listed_whole": "SMG-LP-006"},
        protocols=SMG,
    ),
    Fault(
        "first_prompt_token_is_scored",
        caught_by={"logprobs/first_prompt_token_has_no_score": "OE-LP-005"},
        protocols=OPENENGINE,
    ),
    Fault(
        "prompt_scores_are_shifted_by_one",
        "F082",
        caught_by={"logprobs/prompt_tokens_have_their_own_scores": "OE-LP-006 SMG-LP-007"},
    ),
    Fault(
        "prompt_comes_with_every_token",
        "F083",
        caught_by={"logprobs/prompt_comes_once": "OE-GEN-004"},
        protocols=OPENENGINE,
    ),
    Fault(
        "prompt_comes_at_the_end",
        caught_by={"logprobs/prompt_comes_before_the_first_token": "OE-GEN-006"},
        protocols=OPENENGINE,
    ),
    Fault(
        "first_scored_position_is_ignored",
        caught_by={"logprobs/first_scored_position_is_honoured_or_refused": "OE-LP-020"},
        protocols=OPENENGINE,
    ),
    Fault(
        "first_scored_position_is_always_refused",
        caught_by={"logprobs/scores_from_position_zero_are_all_scores": "OE-LP-021"},
        protocols=OPENENGINE,
    ),
)
