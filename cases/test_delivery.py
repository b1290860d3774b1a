"""A plain stream: every token and message that is owed comes once, in order, and says what it has to say."""

from __future__ import annotations

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import (
    Advance,
    Finish,
    FinishReason,
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
from pytest_grpc_conformance.protocols.base import FinishEvent, PromptEvent, Request, TokensEvent, UnknownEvent
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.targets.base import Target

COUNTS = pytest.mark.parametrize("count", [1, 17, 257, 4096], ids=lambda count: f"tokens={count}")
SPLITS = {"ones": [1] * 11, "mixed": [3, 1, 0, 5, 2], "whole": [11], "empty-first": [0, 0, 6, 5]}


def _several(request_id: str, count: int) -> Request:
    """A request for several sequences, which need a temperature to differ."""
    return Request(request_id, num_sequences=count, temperature=1.0)


def _whole(target: Target, told: Script, request: Request) -> Collected:
    """The whole answer to a request whose script is released from the start."""
    return asserts.succeeded(target.play(told, request), request)


def _plain(target: Target, request_id: str) -> Collected:
    """The whole answer of any server to a plain request; a scripted engine is told what to yield."""
    request = Request(request_id, max_tokens=5, ignore_eos=True)
    if SCRIPTED in target.capabilities:
        target.prepare(request_id, script(one_by_one(tokens(5))), open=True)
    collected = asserts.ended(target.generate(request))
    asserts.status(collected, "OK")
    return collected


# Every token once, in order.


def _rounds(count: int) -> list[int]:
    """How many steps to release at a time: one by one up to 257 and at the end, in a burst between."""
    burst = max(0, count - 258)
    return [1] * min(count, 257) + ([burst, 1] if count > 257 else [])


@requirement("OE-TOK-001", "SMG-CHK-001", needs=(SCRIPTED,))
@COUNTS
def test_each_step_brings_its_own_tokens_only(grpc_target: Target, count: int) -> None:
    """The server MUST send each token once, in the message of its own engine step."""
    told = tokens(count)
    gate = grpc_target.prepare("own", script(one_by_one(told)))
    stream = grpc_target.generate(Request("own"))
    at = 0
    for size in _rounds(count):
        gate.release(size)
        came = asserts.tokens_until(stream, size, gate)
        asserts.token_ids(
            told[at : at + size], came, f"step {at + 1}" if size == 1 else f"steps {at + 1} to {at + size}"
        )
        at += size
    asserts.equal("the number of tokens", count, len(asserts.ended(stream, gate).sequences[0].tokens))


@requirement("OE-GEN-020", "SMG-CHK-003", needs=(SCRIPTED,))
@COUNTS
def test_tokens_come_in_order_with_nothing_lost_or_doubled(grpc_target: Target, count: int) -> None:
    """The server MUST send all tokens of a sequence in the order in which they were generated."""
    told = tokens(count)
    collected = _whole(grpc_target, script(one_by_one(told)), Request("order"))
    asserts.token_ids(told, collected.sequences[0].tokens, "the token messages")


@requirement("OE-TOK-004", "SMG-CHK-001", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS.keys())
def test_step_of_several_tokens_brings_all_of_them(grpc_target: Target, sizes: list[int]) -> None:
    """The server MUST send one record for each token, however many tokens an engine step has."""
    told = tokens(sum(sizes))
    collected = _whole(grpc_target, script(in_steps(told, sizes)), Request("steps"))
    asserts.token_ids(told, collected.sequences[0].tokens, f"steps of {sizes} tokens")


@requirement("OE-TOK-004", "SMG-CHK-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("ids", [(0, 5, 7), (5, 0, 7, 0, 9), (5, 7, 0), (0,)], ids=["first", "middle", "last", "only"])
def test_token_id_zero_is_a_token(grpc_target: Target, ids: tuple[int, ...]) -> None:
    """The server MUST send the token with id 0 like any other token."""
    told = tuple(Token(token_id, b" x") for token_id in ids)
    request = Request("zero")
    collected = _whole(grpc_target, script(one_by_one(told)), request)
    asserts.token_ids(told, collected.sequences[0].tokens, "the token messages")
    asserts.usage(collected, course(script(one_by_one(told)), request.parameters()), request, grpc_target.protocol)


@requirement("OE-TOK-001", "SMG-CHK-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("count", [1, 2], ids=lambda count: f"tokens={count}")
def test_answer_given_inside_submit_is_whole(grpc_target: Target, count: int) -> None:
    """The server MUST send tokens that the engine gave before the submission had returned."""
    request = Request("inside")
    told = script(Step((Advance(0, tokens(count), Finish(FinishReason.LENGTH)),)))
    collected = _whole(grpc_target, told, request)
    asserts.outcome(collected, course(told, request.parameters()), request, grpc_target.protocol)


ENDS: dict[str, tuple[tuple[Token, ...], Request]] = {
    "length": (tokens(4), Request("last")),
    "cap": (tokens(9), Request("last", max_tokens=4)),
    "stop-text": (pieces("a", "b", "c", "END"), Request("last", stops=(StopText("END"),), include_stop=True)),
    "stop-token": (tokens(4), Request("last", stops=(StopToken(103),), include_stop=True)),
    "eos": ((*tokens(4), Token(2, b"")), Request("last")),
}
"""Four tokens are visible; the fourth comes with the step that ends the sequence."""


@requirement("OE-TOK-001", "SMG-CHK-004", needs=(SCRIPTED,))
@pytest.mark.parametrize(("told", "asked"), ENDS.values(), ids=ENDS.keys())
def test_tokens_of_the_last_step_come_as_tokens(grpc_target: Target, told: tuple[Token, ...], asked: Request) -> None:
    """The server MUST send the tokens of the finishing step in a token message before the terminal one."""
    last = script(one_by_one(told[:3]), Step((Advance(0, told[3:]),)))
    collected = _whole(grpc_target, last, asked)
    asserts.token_ids(told[:4], collected.sequences[0].tokens, "the token messages")


@requirement("OE-TOK-002", "SMG-CMP-001", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", [[1, 1], [2], [1, 1, 0]], ids=["with-token", "at-once", "alone"])
def test_terminal_message_repeats_nothing(grpc_target: Target, sizes: list[int]) -> None:
    """The server MUST NOT send any token or text again with the terminal message."""
    told = tokens(2)
    request = Request("terminal")
    collected = _whole(grpc_target, script(in_steps(told, sizes)), request)
    expected = course(script(in_steps(told, sizes)), request.parameters()).outcome[0]
    asserts.sequence(collected.sequences[0], expected, 0, request, grpc_target.protocol)


@requirement("OE-TOK-001", "OE-TOK-017", "SMG-CHK-012", needs=(SCRIPTED,))
def test_trimmed_stop_takes_nothing_back(grpc_target: Target) -> None:
    """The server SHOULD send the tokens before an excluded stop text once, and none of the stop itself."""
    told = pieces("a", "b", "<e", "nd", ">")
    request = Request("trimmed", stops=(StopText("<end>"),))
    collected = _whole(grpc_target, script(one_by_one(told)), request)
    asserts.token_ids(told[:2], collected.sequences[0].tokens, "the token messages")


# Empty steps.


@requirement("OE-GEN-017", "SMG-GEN-012", needs=(SCRIPTED,))
@pytest.mark.parametrize("at", [0, 1, 2], ids=["first", "middle", "last"])
def test_empty_step_does_not_end_the_stream(grpc_target: Target, at: int) -> None:
    """The server MUST NOT take an engine step without tokens for the end of the output."""
    told = tokens(2)
    steps = list(one_by_one(told))
    steps[at:at] = [Step(), Step((Advance(0),))]
    collected = _whole(grpc_target, script(steps), Request("empty"))
    asserts.token_ids(told, collected.sequences[0].tokens, "the token messages")


@requirement("OE-TOK-009", "SMG-CHK-010", needs=(SCRIPTED,))
def test_token_messages_are_not_empty(grpc_target: Target) -> None:
    """The server SHOULD NOT send a token message that holds nothing, but for one at the start."""
    empty = Step((Advance(0),))
    told = script(empty, one_by_one(tokens(2)), empty, empty, one_by_one(tokens(1, start=200)), empty)
    collected = _whole(grpc_target, told, Request("nothing"))
    events = [item.event for item in collected.received]
    holding = [bool(event.tokens or event.text) for event in events if isinstance(event, TokensEvent)]
    asserts.equal("the number of empty token messages after the first message", 0, holding[1:].count(False))


# What every message says.


@requirement("OE-GEN-001", "OE-WIRE-002", "SMG-GEN-002")
def test_accepted_request_is_answered_as_a_stream(grpc_target: Target) -> None:
    """The server MUST answer an accepted request with a stream of messages and the status OK."""
    collected = _plain(grpc_target, "stream")
    asserts.true("an accepted request is answered with a message", bool(collected.received), "no message")


@requirement("OE-GEN-002", "SMG-GEN-004")
def test_each_message_sets_one_event(grpc_target: Target) -> None:
    """The server MUST set exactly one event in each message."""
    events = [item.event for item in _plain(grpc_target, "one-event").received]
    unknown = [event.description for event in events if isinstance(event, UnknownEvent)]
    asserts.equal("the messages without a known event", [], unknown)


@requirement("OE-GEN-003", "SMG-GEN-003")
def test_each_message_repeats_the_request_id(grpc_target: Target) -> None:
    """The server MUST repeat the id of the request in each message."""
    received = _plain(grpc_target, "the-id").received
    asserts.equal("the request ids in the messages", {"the-id"}, {item.request_id for item in received})


@requirement("OE-GEN-007")
def test_token_messages_name_the_first_sequence(grpc_target: Target) -> None:
    """The server MUST send the output index of a token message even when it is 0."""
    events = [item.event for item in _plain(grpc_target, "token-index").received]
    indexes = {event.index for event in events if isinstance(event, TokensEvent)}
    asserts.equal("the output indexes of the token messages (None: left out)", {0}, indexes)


@requirement("OE-GEN-008")
def test_terminal_message_names_the_first_sequence(grpc_target: Target) -> None:
    """The server MUST send the output index of a terminal message even when it is 0."""
    events = [item.event for item in _plain(grpc_target, "finish-index").received]
    indexes = [event.index for event in events if isinstance(event, FinishEvent)]
    asserts.equal("the output indexes of the terminal messages (None: left out)", [0], indexes)


@requirement("OE-GEN-005", "SMG-CMP-010")
def test_plain_request_gets_no_prompt_tokens(grpc_target: Target) -> None:
    """The server MUST NOT send prompt tokens that were not asked for."""
    events = [item.event for item in _plain(grpc_target, "no-prompt").received]
    prompts = [e for e in events if isinstance(e, PromptEvent) or (isinstance(e, FinishEvent) and e.prompt)]
    asserts.equal("the number of messages with prompt tokens", 0, len(prompts))


@requirement("OE-GEN-016")
def test_plain_request_gets_no_prefill_handoff(grpc_target: Target) -> None:
    """The server MUST NOT send `prefill_ready` to a request that is served whole."""
    received = _plain(grpc_target, "no-handoff").received
    events = [str(item.message.WhichOneof("event")) for item in received]
    asserts.equal("the number of prefill_ready events", 0, events.count("prefill_ready"))


@requirement("OE-GEN-012", "SMG-GEN-010")
def test_terminal_message_is_the_last(grpc_target: Target) -> None:
    """The server MUST send token messages first, then the terminal message, then the status OK."""
    events = [item.event for item in _plain(grpc_target, "last-one").received]
    kinds = [isinstance(event, FinishEvent) for event in events]
    asserts.equal("which messages are terminal", [False] * (len(kinds) - 1) + [True], kinds)
    asserts.true("token messages come before the terminal one", len(kinds) > 1, "no token message")


@requirement("OE-TOK-011", "SMG-CHK-006", needs=(SCRIPTED,))
@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS.keys())
def test_counts_follow_the_records(grpc_target: Target, sizes: list[int]) -> None:
    """The server SHOULD count the tokens of a sequence as many as the records that it has sent."""
    collected = _whole(grpc_target, script(in_steps(tokens(sum(sizes)), sizes)), Request("counts"))
    records, counted = 0, []
    for item in collected.received:
        records += len(item.event.tokens) if isinstance(item.event, TokensEvent) else 0
        if item.event.usage is not None:
            counted.append((records, item.event.usage.completion))
    asserts.true("each count is the number of records so far", all(a == b for a, b in counted), counted)
    asserts.true("the last message carries the count", collected.received[-1].event.usage is not None)


@requirement("SMG-CHK-007", needs=(SCRIPTED,))
def test_chunks_tell_the_length_of_the_prompt(grpc_target: Target) -> None:
    """The server SHOULD give the length of the prompt in every chunk."""
    collected = _whole(grpc_target, script(one_by_one(tokens(3))), Request("prompt", tuple(range(11, 18))))
    counts = {usage.prompt for _, usage in collected.usages}
    asserts.equal("the prompt lengths in the messages", {7}, counts)


@requirement("SMG-CHK-008", needs=(SCRIPTED,))
@pytest.mark.parametrize("cached", [0, 2], ids=lambda cached: f"cached={cached}")
def test_chunks_agree_on_the_cached_tokens(grpc_target: Target, cached: int) -> None:
    """The server SHOULD give one and the same number of cached prompt tokens throughout a stream."""
    told = script(one_by_one(tokens(3)), cached_tokens=cached)
    collected = _whole(grpc_target, told, Request("cached"))
    asserts.equal("the cached counts in the messages", {cached}, {usage.cached for _, usage in collected.usages})


# The end.


@requirement("OE-GEN-010", "SMG-CHK-005", needs=(SCRIPTED,))
def test_finished_sequence_says_nothing_more(grpc_target: Target) -> None:
    """The server MUST NOT send anything for a sequence after its terminal message."""
    told = script(side_by_side(tokens(1), tokens(4, start=500)))
    collected = asserts.ended(grpc_target.play(told, _several("quiet", 2)))
    over: list[int | None] = []
    for item in collected.received:
        if isinstance(item.event, TokensEvent | FinishEvent):
            asserts.true(f"nothing follows the end of {over}", item.event.index not in over, item.event)
        if isinstance(item.event, FinishEvent):
            over.append(item.event.index)


# Without streaming.


@requirement("SMG-GEN-011", needs=(SCRIPTED,))
@pytest.mark.parametrize("count", [1, 2], ids=lambda count: f"sequences={count}")
def test_request_without_streaming_gets_terminal_messages_only(grpc_target: Target, count: int) -> None:
    """The server SHOULD answer a request without streaming with terminal messages only."""
    told = script(side_by_side(*(tokens(5 + at, start=1000 * (at + 1)) for at in range(count))))
    request = _several("unary", count).but(streaming=False)
    collected = _whole(grpc_target, told, request)
    asserts.outcome(collected, course(told, request.parameters()), request, grpc_target.protocol)
