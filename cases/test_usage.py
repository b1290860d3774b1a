"""Token counts: on the messages that may carry them, complete, and adding up."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import (
    Advance,
    Ending,
    Script,
    Step,
    StopText,
    StopToken,
    Token,
    in_steps,
    one_by_one,
    pieces,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import ErrorEvent, Request, TokensEvent, Usage
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.targets.base import Target

PROMPT = (11, 12, 13, 14, 15, 16, 17)


def _counted_as_told(target: Target, told: Script, request: Request) -> Collected:
    """The whole answer, whose counts are those of the script."""
    collected = asserts.succeeded(target.play(told, request), request)
    asserts.usage(collected, course(told, request.parameters()), request, target.protocol)
    return collected


def _final_usage(collected: Collected) -> Usage:
    """The counts on the last message."""
    usage = collected.received[-1].event.usage
    if usage is None:
        asserts.violation("the last message carries no counts", "usage", "no usage")
    return usage


# Where counts are.


@requirement("OE-USE-001", needs=(SCRIPTED,))
@pytest.mark.parametrize("count", [1, 3], ids=lambda count: f"n={count}")
def test_usage_is_on_the_last_message_only(grpc_target: Target, count: int) -> None:
    """The server MUST set usage on no message but the last one."""
    told = script(
        side_by_side(*(tokens(2 + at, start=100 * (at + 1)) for at in range(count))),
        prompt=tuple(Token(token_id) for token_id in PROMPT),
    )
    request = Request("last", PROMPT, num_sequences=count, temperature=1.0, prompt_logprobs=0)
    asserts.usage_only_on_last(asserts.succeeded(grpc_target.play(told, request), request))


@requirement("OE-USE-002", "OE-USE-005", "OE-USE-006", "SMG-CMP-008", "SMG-USE-001", "SMG-USE-003")
def test_counts_match_what_came(grpc_target: Target) -> None:
    """The server MUST send counts that add up and match the prompt and the tokens that it sent."""
    request = Request("adds-up", PROMPT, max_tokens=4, ignore_eos=True)
    if SCRIPTED in grpc_target.capabilities:
        grpc_target.prepare("adds-up", script(one_by_one(tokens(4)), cached_tokens=3), open=True)
    collected = asserts.succeeded(grpc_target.generate(request), request)
    usage = _final_usage(collected)
    completion = len(collected.sequences[0].tokens)
    asserts.equal("prompt and completion tokens", (7, completion), (usage.prompt, usage.completion))
    asserts.true("the total is the sum", usage.total in (None, 7 + completion), usage.total)
    asserts.true("cached tokens are among the prompt's", (usage.cached or 0) <= 7, usage.cached)


@requirement("OE-USE-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("count", [0, 2], ids=["before-any-token", "after-two"])
def test_error_carries_what_was_used(grpc_target: Target, count: int) -> None:
    """The server SHOULD send the counts so far with an error that ends a request."""
    told = script(one_by_one(tokens(count)), ending=Ending.FAILURE)
    collected = asserts.ended(grpc_target.play(told, Request("fails", PROMPT)))
    last = collected.received[-1].event if collected.received else None
    asserts.true("the last message is an error", isinstance(last, ErrorEvent), last)
    usage = _final_usage(collected)
    asserts.equal("prompt and completion tokens", (7, count), (usage.prompt, usage.completion))


# Completion tokens.


@requirement("OE-USE-004", "SMG-CHK-006", "SMG-CMP-008", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", [(1,) * 5, (2, 0, 3), (5,)], ids=["ones", "mixed", "one-step"])
def test_each_completion_token_counts_once(grpc_target: Target, sizes: tuple[int, ...]) -> None:
    """The server MUST count every token of the output once, however many steps it took."""
    _counted_as_told(grpc_target, script(in_steps(tokens(5), sizes)), Request("once", PROMPT))


@requirement("OE-USE-004", "SMG-USE-002", "SMG-CMP-008", needs=(SCRIPTED,))
def test_tokens_of_the_last_step_count(grpc_target: Target) -> None:
    """The server MUST count the tokens that came with the end."""
    told = script(in_steps(tokens(3), (1, 2)))
    collected = _counted_as_told(grpc_target, told, Request("last-step", PROMPT))
    counts = [
        event.usage.completion
        for event in (item.event for item in collected.received)
        if isinstance(event, TokensEvent) and event.usage is not None
    ]
    asserts.true("the last running count is the final one", counts[-1:] in ([], [3]), counts)


@requirement("OE-USE-004", "OE-N-007", "SMG-N-004", needs=(SCRIPTED,))
@pytest.mark.parametrize("lengths", [(1, 2, 4), (4, 2, 1), (2, 2)], ids=["rising", "falling", "equal"])
def test_tokens_of_all_sequences_count(grpc_target: Target, lengths: tuple[int, ...]) -> None:
    """The server MUST count the tokens of all sequences, and the prompt once."""
    told = script(side_by_side(*(tokens(length, start=100 * length + at) for at, length in enumerate(lengths))))
    request = Request("all", PROMPT, num_sequences=len(lengths), temperature=1.0)
    _counted_as_told(grpc_target, told, request)


@requirement("OE-USE-002", "OE-USE-004", "SMG-CMP-008", needs=(SCRIPTED,))
def test_answer_without_tokens_has_counts(grpc_target: Target) -> None:
    """The server MUST send counts for an answer without any token, with no completion token."""
    _counted_as_told(grpc_target, script(), Request("none", PROMPT))


@requirement("SMG-CMP-008", needs=(SCRIPTED,))
@pytest.mark.parametrize("stop", [StopText("AB"), StopToken(102)], ids=["text", "token"])
@pytest.mark.parametrize("include", [False, True], ids=["excluded", "included"])
def test_completion_count_is_the_length_of_the_output(
    grpc_target: Target, include: bool, stop: StopText | StopToken
) -> None:
    """The server SHOULD count as many completion tokens as its final message holds, also beside a stop."""
    request = Request("visible", stops=(stop,), include_stop=include)
    collected = asserts.succeeded(grpc_target.play(script(one_by_one(pieces("x", "A", "B", "y"))), request), request)
    finish = collected.sequences[0].finishes[0]
    asserts.equal("the completion tokens", len(finish.output or ()), _final_usage(collected).completion)


# Prompt tokens.


@requirement("OE-USE-009", "OE-GEN-023", "SMG-USE-001", "SMG-CMP-008", needs=(SCRIPTED,))
@pytest.mark.parametrize("prompt", [(7,), (0, 0), PROMPT], ids=["one", "zeros", "seven"])
def test_each_prompt_token_counts(grpc_target: Target, prompt: tuple[int, ...]) -> None:
    """The server SHOULD count exactly the prompt tokens that were sent."""
    _counted_as_told(grpc_target, script(one_by_one(tokens(2))), Request("ids", prompt))


@requirement("OE-USE-009", needs=(SCRIPTED,))
@pytest.mark.parametrize("prompt", ["seven", "two words", "h\u00e9"], ids=["word", "words", "two-bytes"])
def test_text_prompt_counts_as_tokenized(grpc_target: Target, prompt: str) -> None:
    """The server SHOULD count a text prompt by the tokens that the tokenizer makes of it."""
    request = Request("text", prompt)
    collected = asserts.succeeded(grpc_target.play(script(one_by_one(tokens(2))), request), request)
    expected = len(grpc_target.engine.tokenize(prompt))
    asserts.equal("the prompt tokens", expected, _final_usage(collected).prompt)


# Running counts.


@requirement("SMG-CHK-006", "SMG-CHK-007", "SMG-N-004", needs=(SCRIPTED,))
def test_running_counts_are_per_sequence(grpc_target: Target) -> None:
    """The server SHOULD count each sequence by itself on chunks, and repeat the prompt's length."""
    first, second = tokens(3), tokens(2, start=200)
    steps = (
        Step((Advance(0, first[:2]),)),
        Step((Advance(1, second[:1]),)),
        Step((Advance(0, first[2:]), Advance(1, second[1:]))),
    )
    request = Request("running", PROMPT, num_sequences=2, temperature=1.0)
    collected = asserts.succeeded(grpc_target.play(script(steps), request), request)
    running = {0: 0, 1: 0}
    for item in collected.received:
        if isinstance(item.event, TokensEvent) and item.event.index is not None:
            running[item.event.index] += len(item.event.tokens)
            observed = item.event.usage and (item.event.usage.prompt, item.event.usage.completion)
            asserts.equal("prompt and completion tokens", (7, running[item.event.index]), observed)


@requirement("SMG-CMP-014")
def test_speculation_counts_are_consistent(grpc_target: Target) -> None:
    """The server SHOULD not count more accepted draft tokens than draft tokens."""
    request = Request("drafts", PROMPT, max_tokens=3)
    if SCRIPTED in grpc_target.capabilities:
        grpc_target.prepare("drafts", script(one_by_one(tokens(3))), open=True)
    complete: Any = asserts.succeeded(grpc_target.generate(request), request).received[-1].message.complete
    accepted, drafted = complete.spec_accepted_tokens, complete.spec_draft_tokens
    asserts.true("accepted draft tokens are draft tokens", accepted <= drafted, f"{accepted} of {drafted}")


# Cached tokens.


@requirement("OE-USE-006", "OE-USE-008", needs=(SCRIPTED,))
@pytest.mark.parametrize("cached", [None, 0, 4], ids=["unknown", "none", "four"])
def test_cached_count_is_there_when_known(grpc_target: Target, cached: int | None) -> None:
    """The server SHOULD leave out a count that the engine cannot tell, and send a count of 0 that it can."""
    request = Request("cached", PROMPT)
    told = script(one_by_one(tokens(2)), cached_tokens=cached)
    collected = asserts.succeeded(grpc_target.play(told, request), request)
    asserts.equal("the cached prompt tokens", cached, _final_usage(collected).cached)


@requirement("OE-USE-007", "OE-USE-008", needs=(SCRIPTED,))
def test_count_that_no_engine_tells_is_absent(grpc_target: Target) -> None:
    """The server SHOULD leave out the reasoning tokens, which its engine does not tell."""
    request = Request("reasoning", PROMPT)
    collected = asserts.succeeded(grpc_target.play(script(one_by_one(tokens(2))), request), request)
    usage: Any = collected.received[-1].message.usage
    asserts.true("reasoning_tokens is absent", not usage.HasField("reasoning_tokens"), usage)


@requirement("SMG-USE-003", "SMG-USE-004", "SMG-CHK-008", needs=(SCRIPTED,))
@pytest.mark.parametrize("cached", [0, 4], ids=["none", "four"])
def test_cached_count_is_the_same_throughout(grpc_target: Target, cached: int) -> None:
    """The server SHOULD send the same cached count, within the prompt's length, on all messages."""
    told = script(side_by_side(tokens(3), tokens(2, start=200)), cached_tokens=cached)
    request = Request("same", PROMPT, num_sequences=2, temperature=1.0)
    collected = asserts.succeeded(grpc_target.play(told, request), request)
    asserts.equal("the cached tokens", {cached}, {usage.cached for _, usage in collected.usages})
