"""Faults with requests that cannot be served: let pass, answered in the wrong form, or never forgotten."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.base import Message, WireProtocol
from tests.faults.alterations import Refusal, asked, each, is_end, on_refusal
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

# Refusals in the wrong form.


async def _internal(refusal: Refusal, call: Call) -> AsyncIterator[Message]:
    """Whatever was raised is caught and becomes an internal error."""
    await call.context.abort(grpc.StatusCode.INTERNAL, refusal.details)
    yield  # An asynchronous generator needs one; it is never reached.


async def _in_band(refusal: Refusal, call: Call) -> AsyncIterator[Message]:
    """The failure is a message on a stream that ends with OK."""
    message = call.wire.generate.response(request_id=call.request.request_id)
    if hasattr(message, "error"):
        message.error.message = refusal.details
    else:
        message.complete.finish_reason = "error"
    yield message


async def _empty_answer(refusal: Refusal, call: Call) -> AsyncIterator[Message]:
    """The stream ends with OK, and that is all."""
    return
    yield  # An asynchronous generator needs one.


async def _after_the_engine(refusal: Refusal, call: Call) -> AsyncIterator[Message]:
    """The engine is asked before the request is checked."""
    generation = call.engine.submit(call.request.request_id, Prompt((1,)), GenerationParameters())
    generation.abort()
    await call.context.abort(refusal.code, refusal.details)
    yield


refusals_become_internal_errors = Mutant(wrap=on_refusal(_internal))
refusals_are_answered_in_band = Mutant(wrap=on_refusal(_in_band))
refusals_are_empty_answers = Mutant(wrap=on_refusal(_empty_answer))
engine_is_asked_before_the_check = Mutant(wrap=on_refusal(_after_the_engine))


class _NeverForgets:
    """A servicer whose table of active requests keeps those that it refused."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference
        self._refused: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reference, name)

    async def Generate(self, request: Message, context: Any) -> AsyncIterator[Message]:
        if request.request_id in self._refused:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "a request with this id is active")
        try:
            async for message in self._reference.Generate(request, context):
                yield message
        finally:
            if context.code() not in (None, 0, grpc.StatusCode.OK):
                self._refused.add(request.request_id)


def _never_forgetting(servicer: Any, wire: WireProtocol, engine: GatedEngine) -> Any:
    return _NeverForgets(servicer) if hasattr(servicer, "Generate") else servicer


refused_ids_stay_taken = Mutant(wrap=_never_forgetting)


class _KnownRolesOnly:
    """A Control servicer that refuses a health check for a role that it has no name for."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reference, name)

    async def Health(self, request: Message, context: Any) -> Message:
        if request.role not in request.DESCRIPTOR.fields_by_name["role"].enum_type.values_by_number:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unknown role")
        return await self._reference.Health(request, context)


def _knowing_roles(servicer: Any, wire: WireProtocol, engine: GatedEngine) -> Any:
    return _KnownRolesOnly(servicer) if hasattr(servicer, "Health") else servicer


unknown_role_is_refused = Mutant(wrap=_knowing_roles)


# Requests that are let pass.


def _mend_openengine(request: Message) -> None:
    if request.WhichOneof("input") is None or (not request.prompt and not request.token_ids.ids):
        request.token_ids.ids.append(1)
    request.model = "fake-model"
    if request.sampling.num_sequences == 0:
        request.sampling.ClearField("num_sequences")
    kept = [c for c in request.stopping.conditions if c.WhichOneof("condition")]
    del request.stopping.conditions[:]
    request.stopping.conditions.extend(kept)
    _mend_sampling(request.sampling)


def _mend_smg(request: Message) -> None:
    if not request.tokenized.input_token_ids:
        request.tokenized.input_token_ids.append(1)
    request.max_tokens = request.max_tokens or 16
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(request.output_config, name) > 100:
            setattr(request.output_config, name, 100)
    request.ClearField("embedding_bias")
    _mend_sampling(request.sampling_config)


def _mend_sampling(sampling: Any) -> None:
    for name, highest in (("top_p", 1.0), ("temperature", math.inf), ("min_p", 1.0)):
        if sampling.HasField(name) and not 0 <= getattr(sampling, name) <= highest:
            sampling.ClearField(name)


def _mend(request: Message) -> None:
    if hasattr(request, "sampling"):
        _mend_openengine(request)
    else:
        _mend_smg(request)


def _cut_prompt(request: Message) -> None:
    if hasattr(request, "tokenized"):
        del request.tokenized.input_token_ids[1000:]
    elif request.prompt:
        request.prompt = request.prompt[:1000]
    else:
        del request.token_ids.ids[1000:]


def _drop_openengine(request: Message) -> None:
    for name in ("media", "lora_name", "guided"):
        request.ClearField(name)
    request.response.ClearField("output_candidates")


def _drop_smg(request: Message) -> None:
    for name in (
        "lora_config",
        "prompt_tuning_config",
        "multimodal_input",
        "guided_decoding",
        "disaggregated_params",
        "bad",
        "bad_token_ids",
    ):
        request.ClearField(name)
    request.sampling_config.beam_width = 0
    request.sampling_config.ClearField("no_repeat_ngram_size")
    for name in ("context_logits", "generation_logits", "perf_metrics"):
        request.output_config.ClearField(f"return_{name}")


def _drop(request: Message) -> None:
    if hasattr(request, "sampling"):
        _drop_openengine(request)
    else:
        _drop_smg(request)


def _unasked(message: Message) -> None:
    if is_end(message):
        message.complete.perf_metrics.SetInParent()


async def _unknown_numbers_raise(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    """A table of the known numbers is asked without looking, and what it raises ends the call."""
    request = call.request
    numbers = [item.modality for item in getattr(request, "media", ())]
    numbers += [request.guided_decoding.guide_type] if hasattr(request, "guided_decoding") else []
    if any(number > 50 for number in numbers):
        await call.context.abort(grpc.StatusCode.UNKNOWN, "KeyError: 99")
    async for message in messages:
        yield message


Change = Callable[[Message], None]


def _lets_pass(change: Change) -> Mutant:
    return Mutant(generate=asked(change))


bad_requests_are_mended = _lets_pass(_mend)
long_prompt_is_cut = _lets_pass(_cut_prompt)
unsupported_parts_are_dropped = _lets_pass(_drop)
metrics_come_unasked = Mutant(generate=each(_unasked))
unknown_enum_numbers_crash = Mutant(generate=_unknown_numbers_raise)

OPENENGINE = ("openengine",)
SMG = ("smg",)
INVALID = "OE-ERR-001 SMG-ERR-002"

FAULTS = (
    Fault(
        "refusals_become_internal_errors",
        "F056",
        caught_by={
            "refusals/request_without_input_is_refused": f"OE-GEN-021 SMG-GEN-006 {INVALID}",
            "refusals/prompt_beyond_the_window_is_refused": f"OE-GEN-036 {INVALID}",
            "refusals/sampling_value_outside_its_domain_is_refused": f"OE-GEN-033 SMG-SMP-018 {INVALID}",
            "refusals/full_engine_refuses_for_now": "OE-ERR-013 SMG-ERR-006",
            "refusals/unknown_enum_number_crashes_nothing": f"OE-WIRE-007 {INVALID}",
        },
    ),
    Fault(
        "refusals_become_internal_errors",
        "F056",
        caught_by={
            "refusals/unknown_model_is_refused": "OE-GEN-025 OE-ERR-001",
            "refusals/feature_that_is_not_there_is_unimplemented": "OE-ERR-015 OE-ERR-001",
            "refusals/adapter_that_is_not_there_is_refused": "OE-ERR-015 OE-ERR-001",
        },
        protocols=OPENENGINE,
    ),
    Fault(
        "refusals_become_internal_errors",
        "F055",
        caught_by={"refusals/request_that_the_engine_finds_invalid_is_invalid": "SMG-ERR-002"},
        protocols=SMG,
    ),
    Fault(
        "refusals_are_answered_in_band",
        "F054",
        caught_by={
            "refusals/request_without_input_is_refused": f"OE-GEN-021 SMG-GEN-006 {INVALID}",
            "refusals/request_that_the_engine_refuses_gets_a_status_only": "OE-ERR-001 SMG-ERR-001",
        },
    ),
    Fault(
        "refusals_are_empty_answers",
        caught_by={"refusals/empty_prompt_does_no_harm": "OE-GEN-022"},
        protocols=OPENENGINE,
    ),
    Fault(
        "engine_is_asked_before_the_check",
        caught_by={"refusals/invalid_request_does_not_reach_the_engine": "OE-ERR-007"},
        protocols=OPENENGINE,
    ),
    Fault(
        "refused_ids_stay_taken",
        "F064",
        caught_by={
            "refusals/refused_request_leaves_nothing_behind": "OE-GEN-027 SMG-ERR-005",
            "refusals/refusal_by_the_engine_leaves_nothing_behind": "OE-GEN-027 SMG-ERR-005",
        },
    ),
    Fault(
        "bad_requests_are_mended",
        caught_by={
            "refusals/request_without_input_is_refused": f"OE-GEN-021 SMG-GEN-006 {INVALID}",
            "refusals/sampling_value_outside_its_domain_is_refused": f"OE-GEN-033 SMG-SMP-018 {INVALID}",
        },
    ),
    Fault(
        "bad_requests_are_mended",
        caught_by={
            "refusals/zero_sequences_are_refused": "OE-N-002",
            "refusals/unknown_model_is_refused": "OE-GEN-025",
            "refusals/stop_condition_without_member_is_refused": "OE-STOP-015",
            "refusals/invalid_request_does_not_reach_the_engine": "OE-ERR-007",
        },
        protocols=OPENENGINE,
    ),
    Fault(
        "bad_requests_are_mended",
        caught_by={
            "refusals/empty_prompt_is_refused": "SMG-GEN-007",
            "refusals/request_without_token_limit_is_refused": "SMG-GEN-008",
            "refusals/too_many_candidates_are_refused": "SMG-LP-011",
            "refusals/embedding_bias_of_another_length_is_refused": "SMG-SMP-016",
        },
        protocols=SMG,
    ),
    Fault(
        "long_prompt_is_cut",
        caught_by={"refusals/prompt_beyond_the_window_is_refused": f"OE-GEN-036 {INVALID}"},
    ),
    Fault(
        "unknown_enum_numbers_crash",
        "F177",
        caught_by={"refusals/unknown_enum_number_crashes_nothing": f"OE-WIRE-007 {INVALID}"},
    ),
    Fault(
        "unknown_role_is_refused",
        "F177",
        caught_by={"refusals/unknown_role_in_a_health_check_is_no_role": "OE-WIRE-007"},
        protocols=OPENENGINE,
    ),
    Fault(
        "unsupported_parts_are_dropped",
        "F065",
        caught_by={
            "refusals/feature_that_is_not_there_is_unimplemented": "OE-ERR-015",
            "refusals/adapter_that_is_not_there_is_refused": "OE-ERR-015",
            "refusals/listed_candidates_come_or_are_refused": "OE-LP-013",
            "refusals/whole_vocabulary_comes_or_is_refused": "OE-LP-014",
        },
        protocols=OPENENGINE,
    ),
    Fault(
        "unsupported_parts_are_dropped",
        "F065",
        caught_by={
            "refusals/part_that_cannot_be_honoured_is_refused": "SMG-GEN-021",
            "refusals/beam_search_is_done_or_refused": "SMG-SMP-005",
            "refusals/forbidden_words_do_not_come": "SMG-SMP-013",
            "refusals/data_that_was_asked_for_comes_or_is_refused": "SMG-CMP-011 SMG-CMP-013",
        },
        protocols=SMG,
    ),
    Fault(
        "metrics_come_unasked",
        caught_by={"refusals/data_that_nobody_asked_for_does_not_come": "SMG-CMP-011"},
        protocols=SMG,
    ),
)
