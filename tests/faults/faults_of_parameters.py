"""Faults between the request and the engine: values lost, merged, cut, swapped; harmless requests refused."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.unknown_fields import UnknownFieldSet

from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import Alteration, asked, body, engine_asked, engine_given, has_tokens, streamed
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

NUMBERS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
)


def _each_number(change: Callable[[str, float], float | None]) -> Mutant:
    """A mutant that hands each number that a request has to the engine in another form."""

    def otherwise(parameters: GenerationParameters) -> GenerationParameters:
        given = {name: getattr(parameters, name) for name in NUMBERS}
        changed: dict[str, Any] = {n: change(n, value) for n, value in given.items() if value is not None}
        return replace(parameters, **changed)

    return Mutant(engine=engine_asked(lambda parameters, script: otherwise(parameters)))


def _single(name: str, value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0]) if isinstance(value, float) else value


def _swapped(parameters: GenerationParameters) -> GenerationParameters:
    return replace(
        parameters,
        frequency_penalty=parameters.presence_penalty,
        presence_penalty=parameters.frequency_penalty,
    )


sampling_is_dropped = _each_number(lambda name, value: None)
explicit_zero_is_taken_for_absent = _each_number(lambda name, value: value or None)
numbers_have_single_precision = _each_number(_single)
numbers_are_rounded_as_text = _each_number(lambda name, value: round(value, 6) if isinstance(value, float) else value)
seed_is_cut_to_32_bits = _each_number(lambda name, value: int(value) % 2**32 if name == "seed" else value)
seed_goes_through_a_double = _each_number(lambda name, value: int(float(value)) if name == "seed" else value)
penalties_are_swapped = Mutant(engine=engine_asked(lambda parameters, script: _swapped(parameters)))
one_sequence_is_asked_for = Mutant(engine=engine_asked(lambda p, script: replace(p, num_sequences=1)))
token_limit_has_a_small_default = Mutant(
    engine=engine_asked(lambda p, script: replace(p, max_tokens=p.max_tokens or 16))
)


def _part(request: Message) -> str:
    return "sampling" if hasattr(request, "sampling") else "sampling_config"


def _drop_negative_top_k(request: Message) -> None:
    sampling = getattr(request, _part(request))
    if sampling.top_k < 0:
        sampling.ClearField("top_k")


def _fill_with_zero(request: Message) -> None:
    """A sampling part that is there is read field by field, present or not."""
    if request.HasField(_part(request)):
        sampling = getattr(request, _part(request))
        sampling.top_p = sampling.top_p or 0.0
        sampling.min_p = sampling.min_p or 0.0


negative_top_k_is_dropped = Mutant(generate=asked(_drop_negative_top_k))
unset_numbers_are_zero = Mutant(generate=asked(_fill_with_zero))


# The prompt.


def _strip(request: Message) -> None:
    if request.prompt:
        request.prompt = request.prompt.strip()


def _chat(request: Message) -> None:
    if request.prompt:
        request.prompt = f"User: {request.prompt}\nAssistant:"


def _use_text(request: Message) -> None:
    if request.tokenized.original_text:
        del request.tokenized.input_token_ids[:]
        request.tokenized.input_token_ids.extend(request.tokenized.original_text.encode())


def _echo(call: Call) -> Alteration:
    """The output begins with the prompt unless the request excludes it."""
    first = not call.request.output_config.exclude_input_from_output
    prompt = list(call.request.tokenized.input_token_ids)

    def step(message: Message) -> Iterable[Message]:
        nonlocal first
        if first and has_tokens(message):
            first = False
            told = list(body(message).token_ids)
            del body(message).token_ids[:]
            body(message).token_ids.extend(prompt + told)
        return (message,)

    return step


first_token_is_added_to_the_prompt = Mutant(
    engine=engine_given(lambda prompt: Prompt((1, *prompt.token_ids), prompt.text))
)
blanks_around_the_prompt_are_lost = Mutant(generate=asked(_strip))
prompt_becomes_a_chat_turn = Mutant(generate=asked(_chat))
original_text_is_used = Mutant(generate=asked(_use_text))
prompt_is_echoed = Mutant(generate=streamed(_echo))


# Runs that differ, and refusals of what is harmless.


def _different_each_time(call: Call) -> Alteration:
    turn = len(call.engine.submissions)

    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            part = body(message)
            if hasattr(part, "token_ids"):
                told = list(part.token_ids)
                del part.token_ids[:]
                part.token_ids.extend(token_id + turn for token_id in told)
            for token in getattr(part, "tokens", ()):
                token.token_id += turn
        return (message,)

    return step


def _refusing(is_odd: Callable[[Message], bool]) -> Mutant:
    """A mutant that refuses some requests which it should serve."""

    async def mutate(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
        if is_odd(call.request):
            await call.context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not understood")
        async for message in messages:
            yield message

    return Mutant(generate=mutate)


runs_differ = Mutant(generate=streamed(_different_each_time))
unknown_fields_are_refused = _refusing(lambda request: len(UnknownFieldSet(request)) > 0)
extra_is_refused = _refusing(lambda request: bool(request.HasField("extra")))
beam_width_of_one_is_refused = _refusing(lambda request: bool(request.sampling_config.beam_width > 0))

REACHES = "OE-GEN-032 SMG-SMP-017"
OPENENGINE = ("openengine",)
SMG = ("smg",)

FAULTS = (
    Fault("sampling_is_dropped", caught_by={"parameters/sampling_value_reaches_the_engine": REACHES}),
    Fault("penalties_are_swapped", caught_by={"parameters/sampling_values_reach_the_engine_together": REACHES}),
    Fault("seed_is_cut_to_32_bits", "F179", caught_by={"parameters/seed_keeps_all_its_bits": REACHES}),
    Fault("seed_goes_through_a_double", "F179", caught_by={"parameters/seed_keeps_all_its_bits": REACHES}),
    Fault(
        "one_sequence_is_asked_for",
        caught_by={"parameters/number_of_sequences_reaches_the_engine": REACHES},
    ),
    Fault(
        "numbers_have_single_precision",
        caught_by={"parameters/sampling_value_keeps_double_precision": "OE-GEN-032"},
        protocols=OPENENGINE,
    ),
    Fault(
        "numbers_are_rounded_as_text",
        caught_by={"parameters/sampling_value_keeps_single_precision": "SMG-SMP-017"},
        protocols=SMG,
    ),
    Fault(
        "negative_top_k_is_dropped",
        "F175",
        caught_by={"parameters/negative_top_k_is_kept_or_refused": REACHES},
    ),
    Fault(
        "explicit_zero_is_taken_for_absent",
        "F172",
        caught_by={
            "parameters/explicit_zero_is_no_absence": "OE-WIRE-006 SMG-SMP-003",
            "parameters/explicit_minimum_of_zero_is_no_absence": "OE-WIRE-006 SMG-SMP-003",
        },
    ),
    Fault(
        "unset_numbers_are_zero",
        "F173",
        caught_by={"parameters/empty_sampling_part_is_like_none": "OE-WIRE-006 SMG-SMP-003"},
    ),
    Fault(
        "token_limit_has_a_small_default",
        "F176",
        caught_by={"parameters/absent_token_limit_is_the_engines_own": "OE-WIRE-006"},
        protocols=OPENENGINE,
    ),
    Fault(
        "first_token_is_added_to_the_prompt",
        caught_by={
            "parameters/prompt_ids_reach_the_engine": "OE-GEN-023",
            "parameters/prompt_text_reaches_the_tokenizer": "OE-GEN-024",
        },
        protocols=OPENENGINE,
    ),
    Fault(
        "blanks_around_the_prompt_are_lost",
        caught_by={"parameters/prompt_text_reaches_the_tokenizer": "OE-GEN-024"},
        protocols=OPENENGINE,
    ),
    Fault(
        "prompt_becomes_a_chat_turn",
        caught_by={"parameters/prompt_text_reaches_the_tokenizer": "OE-GEN-024"},
        protocols=OPENENGINE,
    ),
    Fault(
        "original_text_is_used",
        caught_by={"parameters/original_text_is_not_used": "SMG-GEN-009"},
        protocols=SMG,
    ),
    Fault(
        "prompt_is_echoed",
        caught_by={"parameters/output_does_not_repeat_the_prompt": "SMG-GEN-015"},
        protocols=SMG,
    ),
    Fault(
        "runs_differ",
        caught_by={"parameters/same_seed_gives_the_same_tokens": "OE-GEN-031 SMG-SMP-006"},
    ),
    Fault(
        "runs_differ",
        caught_by={"parameters/temperature_zero_gives_the_same_tokens": "SMG-SMP-001"},
        protocols=SMG,
    ),
    Fault(
        "unknown_fields_are_refused",
        caught_by={"parameters/unknown_field_is_ignored": "OE-WIRE-005"},
        protocols=OPENENGINE,
    ),
    Fault(
        "unknown_fields_are_refused",
        caught_by={"parameters/retired_fields_are_ignored": "SMG-GEN-014"},
        protocols=SMG,
    ),
    Fault(
        "extra_is_refused",
        caught_by={
            "parameters/empty_extra_is_accepted": "OE-WIRE-009",
            "parameters/unknown_keys_of_extra_are_ignored": "OE-WIRE-010",
        },
        protocols=OPENENGINE,
    ),
    Fault(
        "beam_width_of_one_is_refused",
        caught_by={"parameters/one_beam_is_no_beam_search": "SMG-SMP-004"},
        protocols=SMG,
    ),
)
