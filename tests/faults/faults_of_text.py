"""Faults in the text of a stream: characters torn, blanks lost, text doubled or swallowed. SMG carries no text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import Alteration, body, each, has_tokens, index_of, is_end, streamed, without
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

REPLACEMENT = "\ufffd"


def _text(change: Callable[[str], str]) -> Mutant:
    """The text of each token message is another one."""

    def apply(message: Message) -> None:
        if has_tokens(message):
            body(message).text = change(body(message).text)

    return Mutant(generate=each(apply))


def _without_every_sixteenth(call: Call) -> Alteration:
    count = 0

    def step(message: Message) -> Iterable[Message]:
        nonlocal count
        if has_tokens(message):
            count += 1
            if count % 16 == 0:
                body(message).ClearField("text")
        return (message,)

    return step


def _cut_as_if_cumulative(call: Call) -> Alteration:
    sent = 0

    def step(message: Message) -> Iterable[Message]:
        nonlocal sent
        if has_tokens(message):
            whole = body(message).text
            body(message).text = whole[sent:]
            sent += len(body(message).text)
        return (message,)

    return step


def _text_of_the_last_token(message: Message) -> None:
    if has_tokens(message) and len(body(message).tokens) > 1:
        body(message).text = body(message).text[-3:]


def _one_buffer_for_all(call: Call) -> Alteration:
    """Text of any sequence waits in one buffer, and goes out with the next message of the first."""
    waiting = ""

    def step(message: Message) -> Iterable[Message]:
        nonlocal waiting
        if has_tokens(message):
            waiting += body(message).text
            if index_of(message):
                body(message).ClearField("text")
            else:
                body(message).text, waiting = waiting, ""
        return (message,)

    return step


def _each_token_decoded_alone(message: Message) -> None:
    if has_tokens(message) and not body(message).text:
        body(message).text = REPLACEMENT


def _again_before_a_wide_character(call: Call) -> Alteration:
    """A character beyond the first plane shifts the place up to which text was sent by one."""
    last = ""

    def step(message: Message) -> Iterable[Message]:
        nonlocal last
        if has_tokens(message) and body(message).text:
            fresh = body(message).text
            body(message).text = last + fresh if ord(fresh[0]) > 0xFFFF else fresh
            last = fresh[-1]
        return (message,)

    return step


def _without_the_held_end(lost: Callable[[Message, Message], bool]) -> Callable[[Call], Alteration]:
    """A message before the terminal one is lost when ``lost`` says so."""

    def make(call: Call) -> Alteration:
        held: list[Message] = []

        def step(message: Message) -> Iterable[Message]:
            out = [*held]
            held.clear()
            if is_end(message):
                return [*(before for before in out if not lost(before, message)), message]
            held.append(message)
            return out

        return step

    return make


def _ends_torn(before: Message, end: Message) -> bool:
    return bool(body(before).text.endswith(REPLACEMENT))


def _no_stop_found(before: Message, end: Message) -> bool:
    return not end.finished.HasField("stop_match")


loses_a_delta_in_sixteen = Mutant(generate=streamed(_without_every_sixteenth))
cuts_deltas_as_if_cumulative = Mutant(generate=streamed(_cut_as_if_cumulative))
sends_the_text_of_the_last_token_only = Mutant(generate=each(_text_of_the_last_token))
has_one_buffer_for_all_sequences = Mutant(generate=streamed(_one_buffer_for_all))
drops_tokens_without_text = Mutant(generate=without(lambda m: has_tokens(m) and not body(m).text))
strips_leading_blanks = _text(lambda text: text.lstrip())
ends_text_at_a_nul = _text(lambda text: text.partition("\0")[0])
decodes_each_token_alone = Mutant(generate=each(_each_token_decoded_alone))
sends_the_character_before_again = Mutant(generate=streamed(_again_before_a_wide_character))
drops_the_token_of_a_torn_character = Mutant(generate=streamed(_without_the_held_end(_ends_torn)))
drops_held_text_at_the_end = Mutant(generate=streamed(_without_the_held_end(_no_stop_found)))

ONLY = ("openengine",)

FAULTS = (
    Fault(
        "loses_a_delta_in_sixteen",
        caught_by={"text/text_comes_in_order_with_nothing_lost_or_doubled": "OE-TOK-003"},
        protocols=ONLY,
    ),
    Fault(
        "cuts_deltas_as_if_cumulative",
        "F012",
        caught_by={"text/text_of_deltas_of_mixed_sizes_comes_once": "OE-TOK-002"},
        protocols=ONLY,
    ),
    Fault(
        "sends_the_text_of_the_last_token_only",
        caught_by={"text/text_of_steps_of_several_tokens_is_whole": "OE-TOK-003"},
        protocols=ONLY,
    ),
    Fault(
        "has_one_buffer_for_all_sequences",
        caught_by={"text/each_sequence_has_text_of_its_own": "OE-TOK-010"},
        protocols=ONLY,
    ),
    Fault(
        "drops_tokens_without_text",
        caught_by={"text/token_without_text_is_a_token": "OE-TOK-004"},
        protocols=ONLY,
    ),
    Fault("strips_leading_blanks", "F025", caught_by={"text/blanks_are_kept": "OE-TOK-013"}, protocols=ONLY),
    Fault("ends_text_at_a_nul", caught_by={"text/unusual_characters_are_kept": "OE-TOK-003"}, protocols=ONLY),
    Fault(
        "decodes_each_token_alone",
        "F020",
        caught_by={
            "text/character_cut_by_tokens_arrives_whole": "OE-TOK-003",
            "text/no_delta_shows_a_part_of_a_character": "OE-TOK-005",
        },
        protocols=ONLY,
    ),
    Fault(
        "sends_the_character_before_again",
        "F021",
        caught_by={
            "text/character_cut_by_tokens_arrives_whole": "OE-TOK-003",
            "text/text_before_a_cut_character_comes_once": "OE-TOK-002",
        },
        protocols=ONLY,
    ),
    Fault(
        "drops_the_token_of_a_torn_character",
        "F024",
        caught_by={"text/incomplete_character_does_not_block_the_end": "OE-TOK-006"},
        protocols=ONLY,
    ),
    Fault(
        "drops_held_text_at_the_end",
        "F030",
        caught_by={"text/withheld_text_comes_before_the_end": "OE-TOK-007"},
        protocols=ONLY,
    ),
)
