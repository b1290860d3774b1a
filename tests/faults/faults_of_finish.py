"""Faults at the end of a sequence: the wrong reason, a lost or wrong match, no end or two."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

from pytest_grpc_conformance.engines.gated import GatedEngine, GatedGeneration
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import (
    Alteration,
    RememberingEngine,
    body,
    each,
    engine_asked,
    has_tokens,
    index_of,
    is_end,
    streamed,
    token_ids,
)
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

STOP, LENGTH, CANCELLED = 1, 2, 3
WORDS = {STOP: "stop", LENGTH: "length", CANCELLED: "cancelled"}
MATCHES = {
    "stop_text": "text",
    "matched_stop_str": "text",
    "stop_token_id": "token",
    "matched_token_id": "token",
}


def _reason(message: Message) -> int:
    """The reason of a terminal message, as OpenEngine numbers it."""
    part = body(message)
    if hasattr(part, "finish_reason"):
        return {word: number for number, word in WORDS.items()}.get(part.finish_reason, 0)
    return int(part.reason)


def _set_reason(message: Message, reason: int) -> None:
    part = body(message)
    if hasattr(part, "finish_reason"):
        part.finish_reason = WORDS.get(reason, "")
    else:
        part.reason = reason


def _clear_match(message: Message) -> None:
    body(message).ClearField("stop_match" if hasattr(body(message), "stop_match") else "matched_stop")


def _matched(message: Message) -> tuple[str, Any]:
    """The kind of match (``text``, ``token``, ``eos``, or empty) and its value."""
    part = body(message)
    holder = part.stop_match if hasattr(part, "stop_match") else part
    member = holder.WhichOneof("match" if hasattr(part, "stop_match") else "matched_stop")
    return (MATCHES.get(member, "eos"), getattr(holder, member)) if member else ("", None)


def _match_token(message: Message, token_id: int) -> None:
    part = body(message)
    if hasattr(part, "stop_match"):
        part.stop_match.stop_token_id = token_id
    else:
        part.matched_token_id = token_id


def _at_ends(change: Callable[[Message], object]) -> Mutant:
    """A mutant that changes terminal messages in place."""
    return Mutant(generate=each(lambda message: change(message) if is_end(message) else None))


def _always_stop(message: Message) -> None:
    _set_reason(message, STOP)
    if hasattr(body(message), "stop_match") and not body(message).HasField("stop_match"):
        body(message).stop_match.eos_token_id = 2


def _cancelled_is_stop(message: Message) -> None:
    if _reason(message) == CANCELLED:
        _always_stop(message)


def _text_as_token(message: Message) -> None:
    if _matched(message)[0] == "text":
        _match_token(message, 0)


def _zero_is_unset(message: Message) -> None:
    if _matched(message) == ("token", 0):
        _clear_match(message)


def _eos_as_token(message: Message) -> None:
    part = body(message)
    if _reason(message) == STOP and _matched(message)[0] in ("eos", ""):
        _match_token(message, part.stop_match.eos_token_id if hasattr(part, "stop_match") else 2)


reason_is_always_stop = _at_ends(_always_stop)
abort_looks_like_a_stop = _at_ends(_cancelled_is_stop)
match_is_left_out = _at_ends(_clear_match)
stop_text_is_reported_as_a_token = _at_ends(_text_as_token)
stop_token_zero_is_taken_as_unset = _at_ends(_zero_is_unset)
end_of_sequence_is_reported_as_the_callers = _at_ends(_eos_as_token)
token_limit_is_ignored = Mutant(engine=engine_asked(lambda p, script: replace(p, max_tokens=None)))
nothing_stops = Mutant(
    engine=engine_asked(lambda p, script: replace(p, stop_texts=(), stop_token_ids=(), ignore_eos=True))
)


class _FirstEosOnly(GatedEngine):
    def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> GatedGeneration:
        every = self.eos_token_ids
        self.eos_token_ids = frozenset({min(every)})
        try:
            return super().submit(request_id, prompt, parameters)
        finally:
            self.eos_token_ids = every


only_the_first_eos_ends = Mutant(engine=_FirstEosOnly)


def _limit_wins(call: Call) -> Alteration:
    """The reason is told from the number of tokens, before anybody looks for stops."""
    counts: dict[int, int] = {}
    request = call.request
    limit = request.stopping.max_tokens if hasattr(request, "stopping") else request.max_tokens

    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            counts[index_of(message)] = counts.get(index_of(message), 0) + len(token_ids(message))
        elif is_end(message) and limit and counts.get(index_of(message), 0) >= limit - 1:
            _set_reason(message, LENGTH)
            _clear_match(message)
        return (message,)

    return step


def _unknown_after_empty_step(call: Call) -> Alteration:
    """The reason is looked for only where the last engine result has tokens too."""
    assert isinstance(call.engine, RememberingEngine)
    gate = call.engine.gates[call.request.request_id]
    taken = -1

    def step(message: Message) -> Iterable[Message]:
        nonlocal taken
        if has_tokens(message):
            taken = gate.taken
        elif is_end(message) and gate.taken != taken:
            _set_reason(message, 0)
            _clear_match(message)
        return (message,)

    return step


def _no_end_without_tokens(call: Call) -> Alteration:
    any_token = False

    def step(message: Message) -> Iterable[Message]:
        nonlocal any_token
        any_token = any_token or has_tokens(message)
        return (message,) if any_token else ()

    return step


def _first_reason_for_all(call: Call) -> Alteration:
    first: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        if is_end(message):
            first.append(message)
            _set_reason(message, _reason(first[0]))
            _clear_match(message) if len(first) > 1 else None
        return (message,)

    return step


def _told_twice(call: Call) -> Alteration:
    return lambda message: (message, message) if is_end(message) else (message,)


async def _stops_on_the_prompt(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    """The stops are looked for in the prompt as well, which is before any output."""
    request = call.request
    stops = [(c.stop_text, c.stop_token_id) for c in request.stopping.conditions]
    found = any(text and text in request.prompt for text, _ in stops)
    found = found or any(token_id in request.token_ids.ids for _, token_id in stops if token_id)
    async for message in messages:
        if found and is_end(message):
            _set_reason(message, STOP)
            message.finished.stop_match.stop_text = stops[0][0]
        if not found or is_end(message):
            yield message


limit_wins_over_the_stop = Mutant(generate=streamed(_limit_wins))
reason_is_lost_in_an_empty_step = Mutant(generate=streamed(_unknown_after_empty_step), engine=RememberingEngine)
answer_without_tokens_has_no_end = Mutant(generate=streamed(_no_end_without_tokens))
first_reason_serves_all_sequences = Mutant(generate=streamed(_first_reason_for_all))
end_is_told_twice = Mutant(generate=streamed(_told_twice))
prompt_is_searched_for_stops = Mutant(generate=_stops_on_the_prompt)

LIMIT = "OE-FIN-008 OE-GEN-028 SMG-CMP-004 SMG-SMP-007"
STOPS = "OE-FIN-009 SMG-CMP-005 SMG-CMP-006 SMG-CMP-007"

FAULTS = (
    Fault(
        "end_is_told_twice",
        caught_by={"finish/terminal_message_is_complete": "OE-GEN-011 OE-GEN-012 SMG-CMP-002"},
    ),
    Fault(
        "reason_is_always_stop",
        "F040",
        caught_by={
            "finish/terminal_message_is_complete": "OE-GEN-011 OE-GEN-012 SMG-CMP-002",
            "finish/length_has_no_match": "OE-FIN-006 SMG-CMP-007",
            "finish/token_limit_ends_with_length": LIMIT,
            "finish/token_limit_holds": LIMIT,
            "finish/full_window_ends_with_length": "OE-FIN-008 SMG-CMP-004",
        },
    ),
    Fault(
        "token_limit_is_ignored",
        caught_by={"finish/token_limit_ends_with_length": LIMIT, "finish/token_limit_holds": LIMIT},
    ),
    Fault(
        "match_is_left_out",
        "F035",
        caught_by={
            "finish/matched_stop_text_is_named": "OE-FIN-003 SMG-CMP-005",
            "finish/matched_stop_token_is_named": "OE-FIN-002 SMG-CMP-006",
        },
    ),
    Fault(
        "stop_text_is_reported_as_a_token",
        "F035",
        caught_by={
            "finish/matched_stop_text_is_named": "OE-FIN-003 SMG-CMP-005",
            "finish/reason_and_match_are_per_sequence": "OE-FIN-013 SMG-CMP-005",
        },
    ),
    Fault(
        "stop_token_zero_is_taken_as_unset",
        "F181",
        caught_by={"finish/matched_stop_token_is_named": "OE-FIN-002 SMG-CMP-006"},
    ),
    Fault(
        "end_of_sequence_is_reported_as_the_callers",
        caught_by={
            "finish/end_of_sequence_is_reported_as_such": "OE-FIN-004 SMG-CMP-007",
            "finish/each_of_several_end_of_sequence_ids_ends": "OE-FIN-005 SMG-CMP-007",
        },
    ),
    Fault(
        "only_the_first_eos_ends",
        "F033",
        caught_by={"finish/each_of_several_end_of_sequence_ids_ends": "OE-FIN-005 SMG-CMP-007"},
    ),
    Fault(
        "nothing_stops",
        caught_by={
            "finish/stop_token_that_is_end_of_sequence_too_stops": "OE-FIN-001 SMG-SMP-019",
            "finish/stop_inside_a_step_that_crosses_the_limit": STOPS,
        },
    ),
    Fault(
        "limit_wins_over_the_stop",
        "F038",
        caught_by={
            "finish/stop_on_the_last_allowed_token_wins": "OE-FIN-009 SMG-CMP-005 SMG-CMP-006",
            "finish/stop_inside_a_step_that_crosses_the_limit": STOPS,
        },
    ),
    Fault(
        "reason_is_lost_in_an_empty_step",
        "F041",
        caught_by={"finish/reason_is_known_after_an_empty_step": "OE-FIN-007 SMG-CMP-003"},
    ),
    Fault(
        "answer_without_tokens_has_no_end",
        "F050",
        caught_by={"finish/answer_without_tokens_has_an_end": "OE-GEN-017 SMG-GEN-012"},
    ),
    Fault(
        "first_reason_serves_all_sequences",
        caught_by={"finish/reason_and_match_are_per_sequence": "OE-FIN-013 SMG-CMP-004"},
    ),
    Fault(
        "prompt_is_searched_for_stops",
        caught_by={"finish/stop_in_the_prompt_stops_nothing": "OE-FIN-015"},
        protocols=("openengine",),
    ),
    Fault(
        "abort_looks_like_a_stop",
        "F042",
        caught_by={"finish/aborted_sequence_claims_no_normal_end": "OE-FIN-011 SMG-ABT-004"},
    ),
)
