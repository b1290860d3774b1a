"""Faults with stop conditions: missed, shown, shown too early, held too long, named wrongly."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

from pytest_grpc_conformance.engines.gated import GatedGeneration
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt, Script, Token
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


def _told(script: Script) -> list[Token]:
    """The tokens of a script's steps, in order."""
    return [token for step in script.steps for advance in step.advances for token in advance.tokens]


def _stop_texts(request: Message) -> list[str]:
    if hasattr(request, "stopping"):
        return [c.stop_text for c in request.stopping.conditions if c.WhichOneof("condition") == "stop_text"]
    return list(request.stop)


def _has_stops(request: Message) -> bool:
    return bool(request.stopping.conditions if hasattr(request, "stopping") else request.stop)


# What the engine is asked to stop on.


def _kept(keep: Callable[[str, list[str]], bool]) -> Mutant:
    """Stop texts count only where ``keep`` finds them, given the texts of the tokens."""

    def change(parameters: GenerationParameters, script: Script) -> GenerationParameters:
        texts = [token.piece.decode() for token in _told(script)]
        return replace(parameters, stop_texts=tuple(s for s in parameters.stop_texts if keep(s, texts)))

    return Mutant(engine=engine_asked(change))


def _naively_found(stop: str, texts: list[str]) -> bool:
    """Whether a matcher finds it that forgets all of an attempt when it fails."""
    matched = 0
    for character in "".join(texts):
        matched = matched + 1 if character == stop[matched] else 0
        if matched == len(stop):
            return True
    return False


stop_text_has_to_be_one_token = _kept(lambda stop, texts: stop in texts)
stop_text_is_sought_in_single_tokens = _kept(lambda stop, texts: any(stop in text for text in texts))
matcher_starts_over_after_a_failure = _kept(_naively_found)
only_the_first_conditions_count = Mutant(
    engine=engine_asked(lambda p, script: replace(p, stop_texts=p.stop_texts[:1], stop_token_ids=p.stop_token_ids[:1]))
)
inclusion_is_turned_round = Mutant(engine=engine_asked(lambda p, script: replace(p, include_stop=not p.include_stop)))
token_minimum_is_ignored = Mutant(engine=engine_asked(lambda p, script: replace(p, min_tokens=None)))
end_of_sequence_is_never_ignored = Mutant(engine=engine_asked(lambda p, script: replace(p, ignore_eos=False)))


# What is held back.


class _HidingEngine(RememberingEngine):
    """An engine that knows the stop texts which its servicer has not seen."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.hidden: dict[str, list[str]] = {}

    def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> GatedGeneration:
        stops = tuple(self.hidden.get(request_id, ()))
        return super().submit(request_id, prompt, replace(parameters, stop_texts=stops))


async def _hide_stops(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    """The servicer leaves stop texts to the engine and sends what it gets as it gets it."""
    assert isinstance(call.engine, _HidingEngine)
    call.engine.hidden[call.request.request_id] = _stop_texts(call.request)
    if hasattr(call.request, "stopping"):
        kept = [c for c in call.request.stopping.conditions if c.WhichOneof("condition") != "stop_text"]
        del call.request.stopping.conditions[:]
        call.request.stopping.conditions.extend(kept)
    else:
        del call.request.stop[:]
    async for message in messages:
        yield message


def _late(call: Call) -> Alteration:
    """With any stop text, the latest tokens wait for the next ones."""
    held: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        if not _has_stops(call.request):
            return (message,)
        before = held[:]
        held[:] = [] if is_end(message) else [message]
        return (*before, message) if is_end(message) else before

    return step


def _first_sequence_first(call: Call) -> Alteration:
    """While sequence 0 is held back, nobody gets anything."""
    held: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        if index_of(message) and has_tokens(message):
            held.append(message)
            return ()
        released = held[:]
        held.clear()
        return (*released, message)

    return step


def _lost_at_the_end(call: Call) -> Alteration:
    """What is still held when a sequence ends without the stop is forgotten."""
    held: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        before = held[:]
        held[:] = [message] if has_tokens(message) else []
        if has_tokens(message):
            return before
        return (*before, message) if _caller_stopped(message) else (message,)

    return step


def _caller_stopped(message: Message) -> bool:
    part = body(message)
    if hasattr(part, "stop_match"):
        return part.stop_match.WhichOneof("match") in ("stop_text", "stop_token_id")
    return part.WhichOneof("matched_stop") is not None


def _doubled(message: Message) -> None:
    """Of tokens that were held, the first is sent once more."""
    if has_tokens(message) and len(token_ids(message)) > 1:
        part = body(message)
        records = part.token_ids if hasattr(part, "token_ids") else part.tokens
        kept = list(records)
        del records[:]
        records.extend([kept[0], *kept])


nothing_is_held_back = Mutant(generate=_hide_stops, engine=_HidingEngine)
tokens_are_late_beside_stops = Mutant(generate=streamed(_late))
all_sequences_wait_for_the_held_one = Mutant(generate=streamed(_first_sequence_first))
held_text_is_lost_at_the_end = Mutant(generate=streamed(_lost_at_the_end))
held_token_comes_twice = Mutant(generate=each(_doubled))


# What is sent.


def _past_the_stop(call: Call) -> Alteration:
    """What the engine's step brought after the stop is sent as well."""
    assert isinstance(call.engine, RememberingEngine)
    left = _told(call.engine.gates[call.request.request_id].script)

    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            del left[: len(token_ids(message))]
            return (message,)
        more = type(message)(request_id=message.request_id)
        if hasattr(message, "token"):
            more.token.output_index = 0
            more.token.text = "".join(token.piece.decode() for token in left)
            for token in left:
                more.token.tokens.add(token_id=token.id)
        else:
            more.chunk.token_ids.extend(token.id for token in left)
        return (more, message)

    return step


def _cut_name(message: Message) -> None:
    if not is_end(message):
        return
    part = body(message)
    if hasattr(part, "stop_match") and part.stop_match.stop_text:
        part.stop_match.stop_text = part.stop_match.stop_text[-1:]
    elif getattr(part, "matched_stop_str", ""):
        part.matched_stop_str = part.matched_stop_str[-1:]


def _at_once(is_odd: Callable[[Any], bool]) -> Mutant:
    """A mutant that takes an odd stop condition for one that holds from the start."""

    async def mutate(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
        odd = [condition for condition in call.request.stopping.conditions if is_odd(condition)]
        kept = [condition for condition in call.request.stopping.conditions if not is_odd(condition)]
        del call.request.stopping.conditions[:]
        call.request.stopping.conditions.extend(kept)
        async for message in messages:
            if odd and is_end(message):
                message.finished.reason = 1
                message.finished.stop_match.stop_token_id = odd[0].stop_token_id
            if not odd or is_end(message):
                yield message

    return Mutant(generate=mutate)


what_follows_the_stop_is_sent = Mutant(generate=streamed(_past_the_stop), engine=RememberingEngine)
stop_is_named_by_its_last_character = Mutant(generate=each(_cut_name))
empty_stop_text_stops_at_once = _at_once(lambda condition: condition.stop_text == "")
unknown_stop_token_stops_at_once = _at_once(lambda condition: condition.stop_token_id >= 2**31)

INCLUDED = "SMG-SMP-009 SMG-SMP-010 SMG-SMP-015"
OPENENGINE = ("openengine",)

FAULTS = (
    Fault(
        "inclusion_is_turned_round",
        caught_by={
            "stop/included_stop_text_is_shown": f"OE-STOP-001 {INCLUDED}",
            "stop/included_stop_token_is_shown": f"OE-STOP-002 {INCLUDED}",
            "stop/excluded_stop_text_is_not_shown": f"OE-STOP-003 {INCLUDED}",
            "stop/excluded_stop_token_is_not_shown": f"OE-STOP-004 {INCLUDED}",
            "stop/tokens_of_an_excluded_stop_are_withheld": "OE-STOP-012 SMG-CHK-012",
        },
    ),
    Fault(
        "inclusion_is_turned_round",
        caught_by={"stop/stop_is_excluded_by_default": "SMG-SMP-015"},
        protocols=("smg",),
    ),
    Fault(
        "what_follows_the_stop_is_sent",
        "F032",
        caught_by={"stop/tokens_after_the_match_are_not_shown": "OE-STOP-003 SMG-SMP-015"},
    ),
    Fault(
        "what_follows_the_stop_is_sent",
        "F032",
        caught_by={"stop/text_after_the_match_is_not_shown": "OE-STOP-010"},
        protocols=OPENENGINE,
    ),
    Fault(
        "stop_text_has_to_be_one_token",
        caught_by={
            "stop/stop_text_is_found_in_any_token_split": "OE-STOP-009 SMG-SMP-011",
            "stop/text_after_the_match_is_not_shown": "OE-STOP-010 SMG-SMP-010",
        },
    ),
    Fault(
        "stop_text_is_sought_in_single_tokens",
        "F028",
        caught_by={
            "stop/stop_text_is_found_in_any_token_split": "OE-STOP-009 SMG-SMP-011",
            "stop/excluded_stop_text_is_not_shown": "OE-STOP-003 SMG-SMP-010",
        },
    ),
    Fault(
        "matcher_starts_over_after_a_failure",
        caught_by={"stop/match_that_begins_inside_a_failed_one_counts": "OE-STOP-008 SMG-SMP-010"},
    ),
    Fault(
        "only_the_first_conditions_count",
        caught_by={
            "stop/match_that_completes_first_wins": "OE-STOP-011 SMG-CMP-005",
            "stop/every_stop_condition_is_active": "OE-STOP-017 SMG-SMP-009 SMG-SMP-010",
        },
    ),
    Fault(
        "stop_is_named_by_its_last_character",
        caught_by={"stop/one_of_two_stops_that_end_together_is_named": "OE-STOP-011 SMG-CMP-005"},
    ),
    Fault(
        "nothing_is_held_back",
        "F029",
        caught_by={
            "stop/beginning_of_a_stop_is_not_shown": "OE-STOP-005 SMG-CHK-012",
            "stop/tokens_of_an_excluded_stop_are_withheld": "OE-STOP-012 SMG-CHK-012",
        },
    ),
    Fault(
        "held_token_comes_twice",
        caught_by={"stop/held_text_comes_when_the_match_fails": "OE-STOP-006 SMG-CHK-003"},
    ),
    Fault(
        "held_text_is_lost_at_the_end",
        "F030",
        caught_by={"stop/held_text_comes_when_the_output_ends": "OE-STOP-007 SMG-CHK-003"},
    ),
    Fault(
        "tokens_are_late_beside_stops",
        "F017",
        caught_by={
            "stop/included_stop_holds_nothing_back": "OE-STOP-014 SMG-GEN-016",
            "stop/unrelated_text_is_not_delayed": "OE-GEN-018 SMG-GEN-016",
        },
    ),
    Fault(
        "all_sequences_wait_for_the_held_one",
        caught_by={"stop/holding_one_sequence_back_delays_no_other": "OE-STOP-013 SMG-GEN-016"},
    ),
    Fault(
        "token_minimum_is_ignored",
        caught_by={"stop/minimum_of_tokens_delays_every_stop": "OE-GEN-029 SMG-SMP-008"},
    ),
    Fault(
        "end_of_sequence_is_never_ignored",
        caught_by={"stop/end_of_sequence_can_be_ignored": "OE-GEN-030 SMG-SMP-012"},
    ),
    Fault(
        "empty_stop_text_stops_at_once",
        caught_by={"stop/empty_stop_text_stops_nothing": "OE-STOP-016"},
        protocols=OPENENGINE,
    ),
    Fault(
        "unknown_stop_token_stops_at_once",
        caught_by={"stop/stop_token_outside_the_vocabulary_never_matches": "OE-STOP-018"},
        protocols=OPENENGINE,
    ),
)
