"""Neutral requests and events, and what a wire protocol has to bring, so that one case serves every protocol."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pytest_grpc_conformance.engines.base import Engine
from pytest_grpc_conformance.engines.course import Course
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Finish, Prompt, Script, StopText, StopToken, Token

Message = Any
"""A protobuf message. The generated classes have no common static type that both back ends share."""


@dataclass(frozen=True, slots=True)
class Request:
    """One generation request in neutral words; ``None`` means that the field is left out on the wire."""

    request_id: str
    prompt: str | tuple[int, ...] = (1, 2, 3)
    max_tokens: int | None = 4096
    min_tokens: int | None = None
    num_sequences: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stops: tuple[StopText | StopToken, ...] = ()
    include_stop: bool | None = None
    ignore_eos: bool | None = None
    logprobs: int | None = None
    """``None``: not asked for; ``k``: own score and the ``k`` best candidates of each output token."""
    prompt_logprobs: int | None = None
    streaming: bool = True
    """``False`` asks for terminal messages only; a protocol without such a switch ignores it."""
    model: str | None = None
    """``None``: the model that the target serves."""
    metadata: tuple[tuple[str, str | bytes], ...] = ()

    def but(self, **changes: Any) -> Request:
        """A copy with other fields."""
        return replace(self, **changes)

    def parameters(self) -> GenerationParameters:
        """What a right servicer hands to its engine for this request."""
        return GenerationParameters(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            num_sequences=1 if self.num_sequences is None else self.num_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            stop_texts=tuple(stop.text for stop in self.stops if isinstance(stop, StopText)),
            stop_token_ids=tuple(stop.token_id for stop in self.stops if isinstance(stop, StopToken)),
            include_stop=bool(self.include_stop),
            ignore_eos=bool(self.ignore_eos),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as a message carries them; ``cached`` is ``None`` where the message leaves it out."""

    prompt: int
    completion: int
    cached: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class TokensEvent:
    """New tokens and text of one sequence.

    ``index`` is ``None`` when the message does not say which sequence it means (a fault where presence is required).
    ``text`` is ``None`` in a protocol that carries token ids only. ``usage`` is what this very message carries.
    """

    index: int | None
    tokens: tuple[Token, ...] = ()
    text: str | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """The prompt's tokens with their scores."""

    tokens: tuple[Token, ...] = ()
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The end of one sequence.

    ``output`` is the whole output of the sequence where the protocol repeats it in its terminal message, else ``None``;
    ``prompt`` likewise. ``reason`` is the protocol's own word when it has no neutral one.
    """

    index: int | None
    finish: Finish | None
    reason: str = ""
    usage: Usage | None = None
    output: tuple[Token, ...] | None = None
    prompt: tuple[Token, ...] | None = None


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """A failure that the protocol reports inside the stream. ``code`` is the protocol's own name for it."""

    code: str
    message: str
    retryable: bool
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """A message that sets no member of the response (or one that the protocol does not know)."""

    description: str
    usage: Usage | None = None


Event = TokensEvent | PromptEvent | FinishEvent | ErrorEvent | UnknownEvent


@dataclass(frozen=True, slots=True)
class Received:
    """One response message: its bytes as they came, the parsed message, the request id on it, the neutral event."""

    raw: bytes
    message: Message
    request_id: str
    event: Event


@dataclass(frozen=True, slots=True)
class Status:
    """How an RPC ended. ``code`` is the gRPC code's name, such as ``"OK"`` or ``"CANCELLED"``."""

    code: str
    details: str = ""
    trailers: tuple[tuple[str, str | bytes], ...] = ()

    @property
    def ok(self) -> bool:
        return self.code == "OK"


class AbortAnswer(enum.Enum):
    """What the answer to an abort says."""

    ABORTED = "aborted"
    ALREADY_FINISHED = "already finished"
    NOT_FOUND = "not found"
    """The id is unknown (an RPC status in one protocol, a field in another)."""
    UNSPECIFIED = "unspecified"
    """An OK answer that says none of these."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the server says that it can serve, and its own words for it."""

    serving: bool
    words: str


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC: its full path and the message classes."""

    path: str
    request: type[Any]
    response: type[Any]
    streaming: bool


@dataclass(frozen=True, slots=True)
class Registration:
    """One servicer with the function that registers it on a server, as generated code has it."""

    servicer: object
    add: Callable[[Any, Any], None]


@dataclass(frozen=True, slots=True)
class Traits:
    """How a protocol says things, where protocols differ; cases ask these instead of a protocol's name."""

    carries_text: bool
    """Token messages carry text beside ids."""
    errors_in_band: bool
    """A failure of an accepted request is a message and the RPC ends with OK; else it is a status."""
    repeats_output: bool
    """The terminal message of a sequence holds the whole output once more."""
    usage_per_sequence: bool
    """Usage counts one sequence each; else one message has the total over all sequences."""
    usage_on_tokens: bool
    """Token messages carry counts too."""
    prompt_event: bool
    """Prompt scores come as a message of their own; else in the terminal message."""
    ranks: bool
    """Scores have ranks."""
    reports_eos: bool
    """An end-of-sequence id is named as the match; else nothing is."""
    float32_scores: bool
    """Log probabilities have single precision on the wire."""
    unary_switch: bool
    """A request can ask for terminal messages only."""
    duplicate_id_codes: frozenset[str] = frozenset()
    """Status codes that a refused duplicate id may have; empty: any non-OK code."""
    features: Mapping[str, bool] = field(default_factory=dict)


class WireProtocol(abc.ABC):
    """One wire protocol: bindings, reference servicer, and the translation to and from neutral terms.

    Instances hold no state of a run. Third parties add theirs by the entry point group
    ``pytest_grpc_conformance.protocols`` (an instance, or a class without arguments).
    """

    name: ClassVar[str]
    """The word for ``--grpc-protocol``."""
    title: ClassVar[str]
    requirement_prefix: ClassVar[str]
    """``"OE-"``: the rows that apply to this protocol."""
    traits: ClassVar[Traits]

    # What goes over the wire.

    @property
    @abc.abstractmethod
    def generate(self) -> Method:
        """The server-streaming RPC that every streaming case uses."""

    @abc.abstractmethod
    def to_message(self, request: Request, *, model: str) -> Message:
        """The request message; ``model`` is used where the request names none."""

    @abc.abstractmethod
    def to_event(self, message: Message) -> Event:
        """The neutral event of a response message. Never raises: what cannot be read is an ``UnknownEvent``."""

    @abc.abstractmethod
    def request_id_of(self, message: Message) -> str:
        """The request id on a response message."""

    # Control calls, over a ``grpc.Channel``; ``timeout`` in seconds. They raise ``grpc.RpcError`` as stubs do.

    @abc.abstractmethod
    def abort(self, channel: Any, request_id: str, timeout: float) -> AbortAnswer: ...

    def abort_all(self, channel: Any, timeout: float) -> AbortAnswer:
        """Abort every request. Raises ``NotImplementedError`` in a protocol that has no such call."""
        raise NotImplementedError(f"{self.name} has no call that aborts every request")

    @abc.abstractmethod
    def health(self, channel: Any, timeout: float) -> Health: ...

    @abc.abstractmethod
    def model_name(self, channel: Any, timeout: float) -> str:
        """The served model's name, as the server's discovery call tells it."""

    # The reference servicer, and what it must answer.

    @abc.abstractmethod
    def servicers(self, engine: Engine) -> Sequence[Registration]:
        """The reference servicers on an engine; each call makes fresh ones."""

    @abc.abstractmethod
    def expected_messages(self, request: Request, prompt: Prompt, script: Script, course: Course) -> list[Message]:
        """The response messages for a course, by rule: one result, one message per sequence that it changes.

        This is the source of the goldens. It must not use the reference servicer. It covers courses that end with
        a finish.
        """
