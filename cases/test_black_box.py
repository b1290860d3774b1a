"""What holds for any server of the protocol, whatever it generates: these cases need nothing but its address.

An engine in this process is told what to yield; any other one says what it likes. So nothing is expected of ids and
text but that the messages agree with each other and with the request.
"""

from __future__ import annotations

import math
import time
import uuid

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.script import FinishReason, Token, scored, script, side_by_side, tokens
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import AbortAnswer, Health, Request, Status, Usage
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.protocols.stream import GenerateStream
from pytest_grpc_conformance.targets.base import NotApplicable, Target

LENGTHS = pytest.mark.parametrize("count", [1, 17, 257], ids=lambda count: f"tokens={count}")
MANY = 4096
"""Tokens of a request that is not waited for."""
PARALLEL = 16
DAMAGE = 1e-4
"""How far above 0 rounding may put a log probability."""


def _request(count: int, **fields: object) -> Request:
    """A request for ``count`` tokens under an id that nobody else has."""
    return Request(f"black-box-{uuid.uuid4()}", max_tokens=count, **fields)  # type: ignore[arg-type]


def _start(target: Target, request: Request) -> GenerateStream:
    """Start a request; an engine that waits to be told gets as many tokens as the request wants."""
    if SCRIPTED in target.capabilities:
        count = request.max_tokens or 1
        told = [scored(tokens(count, start=1000 * (at + 1))) for at in range(request.num_sequences or 1)]
        prompt = scored(Token(each) for each in request.prompt if isinstance(each, int))
        target.prepare(request.request_id, script(side_by_side(*told), prompt=prompt), open=True)
    return target.generate(request)


def _play(target: Target, request: Request, *, optional: str = "") -> Collected:
    """The whole stream of a request. A server that says that it lacks what is ``optional`` is not judged."""
    collected = asserts.ended(_start(target, request))
    if optional and collected.status.code == "UNIMPLEMENTED" and not collected.received:
        raise NotApplicable("unimplemented", f"the server does not offer {optional}")
    asserts.ordered(collected, request, target.protocol)
    return collected


def _again(target: Target, request: Request) -> Collected:
    """Play a request whose id may not be free yet: nobody can see when a server's engine has let go of it."""
    until = time.monotonic() + target.timeout
    while True:
        collected = asserts.ended(_start(target, request))
        if collected.received or collected.status.ok or time.monotonic() > until:
            asserts.ordered(collected, request, target.protocol)
            return collected
        asserts.done("a health check", target.client.health)


# The stream.


@requirement("OE-GEN-011", "OE-GEN-012", "SMG-CMP-002", "SMG-CHK-005")
@LENGTHS
def test_stream_is_in_order(grpc_target: Target, count: int) -> None:
    """The server MUST end each sequence with one terminal message, and then the stream with OK."""
    _play(grpc_target, _request(count))


@requirement("OE-GEN-028", "OE-FIN-008", "SMG-CMP-004")
@LENGTHS
def test_max_tokens_bounds_the_output(grpc_target: Target, count: int) -> None:
    """The server SHOULD generate at most max_tokens tokens, and say STOP when it ends before."""
    sequence = _play(grpc_target, _request(count)).sequences[0]
    asserts.true(f"at most {count} tokens come", len(sequence.tokens) <= count, len(sequence.tokens))
    reasons = [finish.finish.reason if finish.finish else finish.reason for finish in sequence.finishes]
    legal = [[FinishReason.STOP]] + [[FinishReason.LENGTH]] * (len(sequence.tokens) == count)
    asserts.true("the finish fits the number of tokens", reasons in legal, reasons)


@requirement("OE-TOK-011", "OE-USE-002", "SMG-CMP-008")
@LENGTHS
def test_usage_is_what_was_delivered(grpc_target: Target, count: int) -> None:
    """The server SHOULD count as used what the prompt holds and what it delivered.

    A generation that ends before max_tokens may count its end-of-sequence token, which need not be delivered.
    """
    request = _request(count)
    collected = _play(grpc_target, request)
    delivered = len(collected.sequences[0].tokens)
    usage = collected.received[-1].event.usage
    asserts.true("the last message carries usage", usage is not None)
    if usage is not None:
        asserts.equal("the number of prompt tokens", len(request.prompt), usage.prompt)
        legal = {delivered} if delivered == count else {delivered, delivered + 1}
        asserts.true(f"completion tokens are in {legal}", usage.completion in legal, usage)


@requirement("OE-N-003", "OE-GEN-009", "SMG-N-001")
@pytest.mark.parametrize("sequences", [1, 2], ids=lambda count: f"n={count}")
def test_sequences_have_their_indexes(grpc_target: Target, sequences: int) -> None:
    """The server MUST number the sequences of a request from 0, and finish each of them once."""
    request = _request(17, num_sequences=sequences, temperature=1.0)
    collected = _play(grpc_target, request, optional="several sequences")
    asserts.equal("the set of sequence indexes", set(range(sequences)), set(collected.sequences))
    for index, sequence in collected.sequences.items():
        asserts.true(f"sequence {index} has at most 17 tokens", len(sequence.tokens) <= 17, len(sequence.tokens))


@requirement("OE-N-007", "SMG-N-004")
def test_usage_counts_every_sequence(grpc_target: Target) -> None:
    """The server MUST count the tokens of all sequences of a request, and its prompt once."""
    request = _request(17, num_sequences=2, temperature=1.0)
    collected = _play(grpc_target, request, optional="several sequences")
    per_sequence = grpc_target.protocol.traits.usage_per_sequence
    sequences = [collected.sequences[index] for index in (0, 1)]
    counted = sum(u.completion for u in _usages(collected, per_sequence))
    asserts.equal("prompt tokens", {len(request.prompt)}, {u.prompt for u in _usages(collected, per_sequence)})
    least = sum(len(sequence.tokens) for sequence in sequences)
    asserts.true(f"completion tokens are from {least} to {least + 2}", least <= counted <= least + 2, counted)


def _usages(collected: Collected, per_sequence: bool) -> list[Usage]:
    finishes = [finish for sequence in collected.sequences.values() for finish in sequence.finishes]
    events = finishes if per_sequence else [collected.received[-1].event]
    return [event.usage for event in events if event.usage is not None]


@requirement("SMG-CHK-003", "SMG-CMP-001")
@pytest.mark.parametrize("count", [17, 257], ids=lambda count: f"tokens={count}")
def test_terminal_message_repeats_the_stream(grpc_target: Target, count: int) -> None:
    """The server MUST put into the terminal message of a sequence all the tokens that it has streamed."""
    sequence = _play(grpc_target, _request(count)).sequences[0]
    for finish in sequence.finishes:
        asserts.token_ids(sequence.tokens, finish.output or (), "the terminal message")


# Scores.


@requirement("OE-LP-001", "OE-LP-019", "SMG-CHK-009")
@pytest.mark.parametrize("best", [1, 3], ids=lambda best: f"candidates={best}")
def test_scores_are_log_probabilities(grpc_target: Target, best: int) -> None:
    """The server MUST give each token a finite log probability, not above 0, when it is asked for scores."""
    sequence = _play(grpc_target, _request(17, logprobs=best), optional="scores").sequences[0]
    values = [token.logprob for token in sequence.tokens]
    asserts.true("every token has a score", None not in values, values)
    values += [candidate.logprob for token in sequence.tokens for candidate in token.candidates]
    wrong = [value for value in values if value is not None and not (math.isfinite(value) and value <= DAMAGE)]
    asserts.equal("scores that are no log probabilities", [], wrong)


@requirement("OE-LP-002", "SMG-CHK-009")
def test_no_scores_unless_asked_for(grpc_target: Target) -> None:
    """The server SHOULD NOT send scores that were not asked for."""
    sequence = _play(grpc_target, _request(17)).sequences[0]
    asserts.equal("tokens with scores", [], [t for t in sequence.tokens if t.logprob is not None or t.candidates])


# Several at once, and the end of one.


@requirement("OE-GEN-019", "SMG-GEN-017")
def test_streams_at_once_are_each_whole(grpc_target: Target) -> None:
    """The server MUST carry sixteen streams at once without mixing them."""
    requests = [_request(17 + number) for number in range(PARALLEL)]
    streams = [_start(grpc_target, request) for request in requests]
    for request, stream in zip(requests, streams, strict=True):
        collected = asserts.succeeded(stream, request)
        count = len(collected.sequences[0].tokens)
        asserts.true(f"at most {request.max_tokens} tokens come", count <= (request.max_tokens or 0), count)


@requirement("OE-GEN-027", "SMG-GEN-010")
def test_id_can_be_used_again_after_the_end(grpc_target: Target) -> None:
    """The server SHOULD serve a request under the id of one that has ended."""
    request = _request(17)
    _play(grpc_target, request)
    _again(grpc_target, request)


@requirement("OE-GEN-027", "SMG-GEN-010")
def test_id_can_be_used_again_after_a_cancel(grpc_target: Target) -> None:
    """The server SHOULD serve a request under the id of one that was cancelled in mid-stream, in the end."""
    request = _request(MANY)
    stream = _start(grpc_target, request)
    asserts.next_event(stream)
    stream.cancel()
    _again(grpc_target, request.but(max_tokens=17))


# Control.


@requirement("OE-ABT-002", "SMG-ABT-002")
def test_abort_of_an_unknown_id_is_answered(grpc_target: Target) -> None:
    """The server MUST say that it does not know the id that an abort names."""
    answer = asserts.done("an abort", lambda: grpc_target.client.abort(f"nobody-{uuid.uuid4()}"), "UNIMPLEMENTED")
    if isinstance(answer, Status):
        raise NotApplicable("no-abort", "the server does not offer to abort requests")
    asserts.equal("the answer", AbortAnswer.NOT_FOUND, answer)


@requirement("OE-HLT-006", "SMG-HLT-001")
def test_server_that_serves_is_healthy(grpc_target: Target) -> None:
    """The server MUST say that it can serve when it has just done so."""
    _play(grpc_target, _request(1))
    health = asserts.done("a health check", grpc_target.client.health)
    asserts.true("the server says that it can serve", isinstance(health, Health) and health.serving, health)


@requirement("OE-WIRE-013", "SMG-GEN-001")
def test_discovered_model_is_served(grpc_target: Target) -> None:
    """The server MUST serve a request for the model that its discovery call names."""
    channel, wire = grpc_target.client.channel, grpc_target.protocol
    name = asserts.done("discovery", lambda: wire.model_name(channel, grpc_target.timeout))
    asserts.true("the model has a name", isinstance(name, str) and bool(name), name)
    _play(grpc_target, _request(1, model=name))
