"""What cases assert, in the protocol's words. This is the only place that raises ``Violation``.

Each function says what was expected and what was observed. A wait for something that the server owes ends in a
``Violation`` when its deadline passes, with the positions of the gates; a wait for the harness itself stays an error.
"""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import grpc

from pytest_grpc_conformance.engines.course import Course, SequenceOutcome
from pytest_grpc_conformance.engines.gate import Gate
from pytest_grpc_conformance.engines.milestone import DeadlineMissed, Milestone
from pytest_grpc_conformance.engines.script import EndOfSequence, Finish, FinishReason, StopText, StopToken, Token
from pytest_grpc_conformance.protocols.base import (
    ErrorEvent,
    Event,
    FinishEvent,
    Received,
    Request,
    Status,
    TokensEvent,
    UnknownEvent,
    Usage,
    WireProtocol,
)
from pytest_grpc_conformance.protocols.collected import Collected, SequenceReceived, collect
from pytest_grpc_conformance.protocols.stream import GenerateStream, NothingCame, describe
from pytest_grpc_conformance.protocols.stream import status_of as rpc_status
from pytest_grpc_conformance.servers.base import BindFailed
from pytest_grpc_conformance.verdict import Violation

T = TypeVar("T")
LONGEST_VALUE = 300


def violation(problem: str, expected: object, observed: object, *, evidence: str = "") -> NoReturn:
    """Raise a ``Violation``; values are cut so that the failure stays on one screen."""
    raise Violation(problem, expected=_short(expected), observed=_short(observed), evidence=evidence)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def equal(what: str, expected: object, observed: object) -> None:
    """The observed value equals the expected one."""
    if expected != observed:
        violation(f"{what} differs", expected, observed)


def true(what: str, holds: bool, observed: object = "it does not hold") -> None:
    """A statement about the server holds; ``what`` is the statement."""
    if not holds:
        violation(f"not so: {what}", what, observed)


# Waiting for what the server owes.


def reached(milestone: Milestone, what: str) -> None:
    """Something that the server must cause at the engine happens in time."""
    try:
        milestone.wait()
    except DeadlineMissed as missed:
        violation(f"the server did not cause this in time: {what}", what, str(missed))


def next_event(stream: GenerateStream, *gates: Gate) -> Event:
    """The event of the next message, which the server owes now."""
    received = _next(stream, gates, "a message")
    if isinstance(received, Status):
        violation(
            "the stream ended where a message was due",
            "a message",
            f"status {received.code} {received.details}",
            evidence=_stand(stream, gates),
        )
    return received.event


def next_tokens(stream: GenerateStream, *gates: Gate) -> TokensEvent:
    """The next token message, which the server owes now.

    A message without tokens and text is passed over: both protocols allow an empty opening message.
    """
    while True:
        event = next_event(stream, *gates)
        if not isinstance(event, TokensEvent):
            violation("a token message was due", "a token message", describe(event), evidence=_stand(stream, gates))
        if event.tokens or event.text:
            return event


def tokens_until(stream: GenerateStream, count: int, *gates: Gate) -> list[Token]:
    """Tokens from token messages until ``count`` have come; the server owes them now."""
    tokens: list[Token] = []
    while len(tokens) < count:
        tokens.extend(next_tokens(stream, *gates).tokens)
    return tokens


def output_until(stream: GenerateStream, count: int, text: str, *gates: Gate) -> list[Token]:
    """Tokens from token messages until ``count`` tokens and all of ``text`` have come; the server owes them now.

    Tokens and their text may come in separate messages.
    """
    tokens: list[Token] = []
    shown = ""
    while len(tokens) < count or len(shown) < len(text):
        event = next_tokens(stream, *gates)
        tokens.extend(event.tokens)
        shown += event.text or ""
    equal("the text that has come", text, shown)
    return tokens


def status_of(stream: GenerateStream, *gates: Gate) -> Status:
    """The status, which the server owes now; a message in its place is a violation."""
    item = _next(stream, gates, "the status")
    if isinstance(item, Received):
        violation("a message came where only the status was due", "the status", describe(item.event))
    return item


def answered(stream: GenerateStream, *gates: Gate) -> None:
    """The server has given a first message or ended the call, one of which it owes now."""
    _next(stream, gates, "a message or the status")


def ended(stream: GenerateStream, *gates: Gate) -> Collected:
    """The whole stream, once its status is there; the server owes all of it now."""
    try:
        received = stream.rest()
    except NothingCame as nothing:
        violation("the stream does not end", "messages up to a status", str(nothing), evidence=_stand(stream, gates))
    assert stream.status is not None
    return collect(received, stream.status)


def _next(stream: GenerateStream, gates: Sequence[Gate], what: str) -> Received | Status:
    try:
        return stream.next()
    except NothingCame as nothing:
        violation(f"{what} was due, but nothing came", what, str(nothing), evidence=_stand(stream, gates))


def _stand(stream: GenerateStream, gates: Iterable[Gate]) -> str:
    lines = [f"gate {gate.request_id!r}: {gate.position}" for gate in gates]
    return "\n".join([*lines, f"client got {len(stream.received)} messages"])


def done(what: str, act: Callable[[], T], *codes: str) -> T | Status:
    """The server does in time what it owes outside a stream: a control call is answered, a stop returns, a start binds.

    The result; or the status, when the call ended with one of ``codes``, which are allowed instead of an answer.
    """
    try:
        return act()
    except grpc.RpcError as error:
        ending = rpc_status(error)
        if ending.code in codes:
            return ending
        violation(f"{what} failed", " or ".join(("OK", *codes)), f"{ending.code} {ending.details}")
    except (TimeoutError, concurrent.futures.TimeoutError, BindFailed) as error:
        violation(f"{what} did not succeed in time", what, f"{type(error).__name__}: {error}")


# Status and errors.


def status(observed: Status | Collected, *codes: str) -> None:
    """The RPC ended with one of these codes."""
    found = observed.status if isinstance(observed, Collected) else observed
    if found.code not in codes:
        violation("the RPC ended with the wrong status", " or ".join(codes), f"{found.code} {found.details}")


def refused(collected: Collected, *codes: str) -> None:
    """The request was refused before acceptance: a non-OK status and no message at all."""
    if collected.received:
        violation(
            "a refused request was answered with messages",
            "no message",
            describe(collected.received[0].event),
        )
    if codes:
        status(collected, *codes)
    elif collected.status.ok:
        violation("a request that must be refused ended with OK", "a non-OK status", "OK")


def failed(collected: Collected, wire: WireProtocol) -> None:
    """An accepted request failed in the protocol's own form, once, last, and in no other form."""
    if not wire.traits.errors_in_band:
        true("a failed request ends with a non-OK status", not collected.status.ok, "OK")
        equal("the number of in-band errors", 0, len(collected.errors))
        return
    equal("the number of error messages", 1, len(collected.errors))
    last = collected.received[-1].event
    if not isinstance(last, ErrorEvent):
        violation("a message follows the error", "the error as the last message", describe(last))
    status(collected, "OK")


def transport_ended(collected: Collected, *codes: str) -> None:
    """A transport or framework ending: one of these codes, and no in-band error that was made up for it."""
    status(collected, *codes)
    equal("the number of in-band errors beside a transport status", 0, len(collected.errors))


# The order of a stream.


def ordered(collected: Collected, request: Request, wire: WireProtocol) -> None:
    """A stream that succeeded: known events only, one finish per sequence, nothing after it, status OK last."""
    status(collected, "OK")
    for at, item in enumerate(collected.received):
        if isinstance(item.event, UnknownEvent):
            violation(f"message {at} sets no known event", "a known event", item.event.description)
        if item.request_id != request.request_id:
            violation(f"message {at} has another request id", request.request_id, item.request_id)
    if collected.errors:
        violation("a stream that should succeed holds an error", "no error", describe(collected.errors[0]))
    wanted = request.num_sequences or 1
    equal("the set of sequence indexes", list(range(wanted)), sorted(_indexes(collected)))
    for index in range(wanted):
        sequence = collected.sequences[index]
        equal(f"the number of terminal messages of sequence {index}", 1, len(sequence.finishes))
        equal(f"the number of token messages after sequence {index} finished", 0, sequence.after_finish)
    last = collected.received[-1].event
    if not isinstance(last, FinishEvent):
        violation("the last message is not a terminal one", "a terminal message", describe(last))


def _indexes(collected: Collected) -> list[int]:
    if None in collected.sequences:
        violation("a message does not say which sequence it means", "the index present on the wire", "index absent")
    return [index for index in collected.sequences if index is not None]


def succeeded(stream: GenerateStream, request: Request) -> Collected:
    """The whole stream of a request that must succeed, in a legal order; the server owes all of it now."""
    collected = ended(stream)
    ordered(collected, request, stream.protocol)
    return collected


# What was streamed.


def outcome(collected: Collected, course: Course, request: Request, wire: WireProtocol) -> None:
    """The whole stream is what the script says under the request: order, ids, text, scores, finish, match and usage."""
    ordered(collected, request, wire)
    for index in range(request.num_sequences or 1):
        sequence(collected.sequences[index], course.outcome[index], index, request, wire)
    usage(collected, course, request, wire)


def sequence(
    received: SequenceReceived, expected: SequenceOutcome, index: int, request: Request, wire: WireProtocol
) -> None:
    """One sequence is what the script says: ids, text, scores, finish; also in a terminal message that repeats it."""
    if request.streaming or not wire.traits.unary_switch:
        token_ids(expected.tokens, received.tokens, f"sequence {index}")
        scores(expected.tokens, received.tokens, wire, f"sequence {index}")
        if wire.traits.carries_text:
            text(expected.text, received.text, f"sequence {index}")
    else:
        equal(f"the number of token messages of sequence {index} without streaming", 0, received.token_messages)
    finish = received.finishes[-1]
    if finish.output is not None:
        token_ids(expected.tokens, finish.output, f"the terminal message of sequence {index}")
        scores(expected.tokens, finish.output, wire, f"the terminal message of sequence {index}")
    finished(finish, expected.finish, wire, f"sequence {index}")


def token_ids(expected: Sequence[Token], observed: Sequence[Token], where: str) -> None:
    """The ids are those of the script, all of them, in order, once."""
    theirs = [token.id for token in observed]
    ours = [token.id for token in expected]
    if ours == theirs:
        return
    at = next(
        (i for i, (one, two) in enumerate(zip(ours, theirs, strict=False)) if one != two),
        min(len(ours), len(theirs)),
    )
    violation(
        f"token ids of {where} differ from position {at} on ({len(ours)} expected, {len(theirs)} received)",
        f"{ours[max(0, at - 2) : at + 6]} at {max(0, at - 2)}",
        f"{theirs[max(0, at - 2) : at + 6]} at {max(0, at - 2)}",
    )


def text(expected: str, observed: str, where: str) -> None:
    """The joined text is that of the script, with nothing lost, doubled or reordered."""
    if expected == observed:
        return
    at = next(
        (i for i, (a, b) in enumerate(zip(expected, observed, strict=False)) if a != b),
        min(len(expected), len(observed)),
    )
    start = max(0, at - 10)
    violation(
        f"text of {where} differs from character {at} on ({len(expected)} expected, {len(observed)} received)",
        repr(expected[start : at + 30]),
        repr(observed[start : at + 30]),
    )


def scores(expected: Sequence[Token], observed: Sequence[Token], wire: WireProtocol, where: str) -> None:
    """Each token has the log probability, rank and candidates of its own position (and none where none were asked)."""
    for at, (ours, theirs) in enumerate(zip(expected, observed, strict=False)):
        if not _same_logprob(ours.logprob, theirs.logprob):
            violation(f"logprob of token {at} of {where} differs", ours.logprob, theirs.logprob)
        if wire.traits.ranks and ours.rank != theirs.rank:
            violation(f"rank of token {at} of {where} differs", ours.rank, theirs.rank)
        mine = [(c.token_id, c.logprob, c.rank if wire.traits.ranks else None) for c in ours.candidates]
        got = [(c.token_id, c.logprob, c.rank if wire.traits.ranks else None) for c in theirs.candidates]
        if mine != got:
            violation(f"candidates of token {at} of {where} differ", mine, got)


def _same_logprob(ours: float | None, theirs: float | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    # Minus infinity is not to be sent as it is; a finite value that no real token has stands for it.
    return ours == theirs or (math.isinf(ours) and math.isfinite(theirs) and theirs <= -1000)


def finished(observed: FinishEvent, expected: Finish | None, wire: WireProtocol, where: str) -> None:
    """The terminal message of a sequence has the reason and the stop match of the script."""
    if expected is None:
        violation(f"{where} finished, but its script does not", "no terminal message", describe(observed))
    match = expected.match
    if isinstance(match, EndOfSequence) and not wire.traits.reports_eos:
        match = None
    if observed.finish != Finish(expected.reason, match):
        violation(
            f"the finish of {where} differs",
            Finish(expected.reason, match),
            observed.finish or observed.reason,
        )


# Usage.


def usage(collected: Collected, course: Course, request: Request, wire: WireProtocol) -> None:
    """The token counts are those of the script, on the messages that may carry them, and add up."""
    prompt = len(request.prompt)  # Both fake tokenizations are one token a byte, and prompts of cases are ASCII or ids.
    if wire.traits.usage_per_sequence:
        for index in range(request.num_sequences or 1):
            counts = collected.sequences[index].finishes[-1].usage
            _counts(counts, prompt, len(course.outcome[index].tokens), f"sequence {index}")
        return
    usage_only_on_last(collected)
    hidden = sum(_hidden(sequence.finish, request) for sequence in course.outcome)
    _counts(collected.received[-1].event.usage, prompt, course.completion_tokens, "the last message", hidden)


def _hidden(finish: Finish | None, request: Request) -> int:
    """How many tokens at most the end of a sequence keeps out of the output; OE-USE-011 lets a server count them."""
    match None if finish is None else finish.match:
        case EndOfSequence():
            return 1
        case StopToken() if not request.include_stop:
            return 1
        case StopText(text) if not request.include_stop:
            return len(text)  # A token of the stop has one character at least.
        case _:
            return 0


def usage_only_on_last(collected: Collected) -> None:
    """The last message carries usage, and no other does."""
    positions = [at for at, _ in collected.usages]
    equal("the positions of the messages with usage", [len(collected.received) - 1], positions)


def _counts(observed: Usage | None, prompt: int, completion: int, where: str, hidden: int = 0) -> None:
    if observed is None:
        violation(f"{where} carries no usage", f"prompt {prompt}, completion {completion}", "no usage")
    equal(f"prompt tokens of {where}", prompt, observed.prompt)
    if not completion <= observed.completion <= completion + hidden:
        wanted = f"{completion}" + (f", or up to {completion + hidden} with what the stop hides" if hidden else "")
        violation(f"completion tokens of {where} differs", wanted, observed.completion)
    if observed.total is not None:
        equal(f"total tokens of {where}", prompt + observed.completion, observed.total)
    if observed.cached is not None:
        true(
            f"cached tokens of {where} do not exceed prompt tokens",
            observed.cached <= observed.prompt,
            observed,
        )


# The engine's record.


def engine_aborts(expected: int, gate: Gate, aborts: Sequence[str]) -> None:
    """The engine saw exactly so many aborts of the gate's request."""
    equal(
        f"the number of aborts that reached the engine for {gate.request_id!r}",
        expected,
        list(aborts).count(gate.request_id or ""),
    )


def parameter(name: str, expected: Any, observed: Any) -> None:
    """A request's parameter reached the engine with the value that was sent."""
    equal(f"parameter {name} at the engine", expected, observed)


def cancelled(event: FinishEvent, where: str) -> None:
    """A sequence that was aborted does not claim a normal end."""
    if event.finish is not None and event.finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
        violation(f"{where} was aborted, but reports a normal end", "cancelled", event.finish)
