"""From a GenerateRequest to what an engine is given, with every check that comes before acceptance.

What the client left out reaches the engine as ``None``, an explicit zero as zero. A part that this server
cannot honour is refused, never dropped (SMG-GEN-021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.base import Message

INT32_MAX = 2**31 - 1
MAX_LOGPROBS = 100
"""TensorRT-LLM's own limit, for output and prompt tokens alike."""
MAX_SEQUENCES = 256

# Per part of a request, the fields that may not be set; one with presence counts as set at its default too.
# Guided decoding, embedding bias and disaggregation are refused by checks of their own below.
UNSUPPORTED: dict[str, frozenset[str]] = {
    "": frozenset(
        {
            "lora_config",
            "prompt_tuning_config",
            "multimodal_input",
            "kv_cache_retention",
            "lookahead_config",
            "cache_salt_id",
            "arrival_time",
            "bad",
            "bad_token_ids",
        }
    ),
    "tokenized": frozenset({"query_token_ids"}),
    "sampling_config": frozenset(
        {
            "top_p_min",
            "top_p_reset_ids",
            "top_p_decay",
            "beam_search_diversity_rate",
            "prompt_ignore_length",
            "length_penalty",
            "early_stopping",
            "no_repeat_ngram_size",
            "beam_width_array",
        }
    ),
    "output_config": frozenset(
        {
            "return_context_logits",
            "return_generation_logits",
            "return_encoder_output",
            "return_perf_metrics",
        }
    ),
}

DOMAINS: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: value >= 0, "at least 0"),
    "top_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "top_k": (lambda value: value >= 0, "at least 0"),
    "min_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "min_tokens": (lambda value: value <= INT32_MAX, f"at most {INT32_MAX}"),
    "repetition_penalty": (lambda value: value > 0, "above 0"),
    "presence_penalty": (lambda value: True, "finite"),
    "frequency_penalty": (lambda value: True, "finite"),
}


class CallFailure(Exception):
    """The call ends with this status. ``code`` is the gRPC code's name; ``details`` are fit for clients."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request that passed every check."""

    request_id: str
    prompt: Prompt
    parameters: GenerationParameters
    streaming: bool


def read_request(message: Message, *, max_input_tokens: int, vocabulary_size: int) -> Accepted:
    """Check a GenerateRequest and translate it. Raises ``CallFailure``.

    ``original_text`` stays behind: it is for logs only (SMG-GEN-009). Unknown fields, such as the retired
    7 to 10, are not looked at.
    """
    _check_required(message, max_input_tokens)
    _check_supported(message, vocabulary_size)
    _check_domains(message)
    sampling, output = message.sampling_config, message.output_config
    return Accepted(
        request_id=message.request_id,
        prompt=Prompt(tuple(message.tokenized.input_token_ids)),
        parameters=GenerationParameters(
            max_tokens=message.max_tokens,
            min_tokens=_present(sampling, "min_tokens"),
            num_sequences=sampling.num_return_sequences or 1,
            temperature=_present(sampling, "temperature"),
            top_p=_present(sampling, "top_p"),
            top_k=_present(sampling, "top_k"),
            min_p=_present(sampling, "min_p"),
            frequency_penalty=_present(sampling, "frequency_penalty"),
            presence_penalty=_present(sampling, "presence_penalty"),
            repetition_penalty=_present(sampling, "repetition_penalty"),
            seed=_present(sampling, "seed"),
            stop_texts=tuple(message.stop),
            stop_token_ids=tuple(message.stop_token_ids),
            include_stop=message.include_stop_token_in_output,
            ignore_eos=message.ignore_eos,
            logprobs=_present(output, "logprobs"),
            prompt_logprobs=_present(output, "prompt_logprobs"),
        ),
        streaming=message.streaming,
    )


def _check_required(message: Message, max_input_tokens: int) -> None:
    _require(bool(message.request_id), "request_id is required")
    _require(message.HasField("tokenized"), "tokenized is required")
    length = len(message.tokenized.input_token_ids)
    _require(length > 0, "tokenized.input_token_ids is empty")
    _require(
        length <= max_input_tokens,
        f"tokenized.input_token_ids has {length} ids, but the longest input is {max_input_tokens}",
    )
    _require(0 < message.max_tokens <= INT32_MAX, f"max_tokens is required, from 1 to {INT32_MAX}")


def _check_supported(message: Message, vocabulary_size: int) -> None:
    refused: list[str] = []
    for part, names in UNSUPPORTED.items():
        fields = (getattr(message, part) if part else message).ListFields()
        refused += [f"{part}.{field.name}".lstrip(".") for field, _ in fields if field.name in names]
    if message.HasField("guided_decoding"):
        _check_enum(message.guided_decoding, "guide_type", "guided_decoding.guide_type")
        refused.append("guided_decoding")
    if message.HasField("disaggregated_params") and not _is_full_request(message.disaggregated_params):
        refused.append("disaggregated_params")
    if message.embedding_bias:
        length = len(message.embedding_bias)
        _require(length == vocabulary_size, f"embedding_bias has {length} values, not {vocabulary_size}")
        refused.append("embedding_bias")
    if message.sampling_config.beam_width > 1:
        refused.append("sampling_config.beam_width above 1")
    if refused:
        raise CallFailure("UNIMPLEMENTED", f"this server does not support {', '.join(refused)}")


def _is_full_request(params: Message) -> bool:
    """Whether the parameters ask for what every request gets: context and generation in one server."""
    _check_enum(params, "request_type", "disaggregated_params.request_type")
    linked = params.ctx_request_id or params.HasField("context_phase_params")
    return params.request_type == 0 and not linked


def _check_enum(message: Message, field: str, name: str) -> None:
    value = getattr(message, field)
    known = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    _require(value in known, f"{name} has no value {value}")


def _check_domains(message: Message) -> None:
    sampling, output = message.sampling_config, message.output_config
    _require(sampling.beam_width >= 0, "sampling_config.beam_width must be at least 0")
    _require(
        sampling.num_return_sequences <= MAX_SEQUENCES,
        f"sampling_config.num_return_sequences must be at most {MAX_SEQUENCES}",
    )
    for name, (holds, words) in DOMAINS.items():
        if sampling.HasField(name):
            value = getattr(sampling, name)
            _require(math.isfinite(value) and holds(value), f"sampling_config.{name} must be {words}")
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(output, name)
        _require(0 <= count <= MAX_LOGPROBS, f"output_config.{name} must be from 0 to {MAX_LOGPROBS}")
    _require(all(message.stop), "a stop string is empty")


def _require(holds: bool, details: str) -> None:
    if not holds:
        raise CallFailure("INVALID_ARGUMENT", details)


def _present(message: Message, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None
