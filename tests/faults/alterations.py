"""What the planted faults are made of: changed requests, changed messages, changed engines, changed refusals.

A fault should serve both protocols where it can. So it is planted in the engine where that looks the same to
a client (a parameter that a servicer loses is one that its engine does not get), else in the messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

from pytest_grpc_conformance.engines.gate import Gate
from pytest_grpc_conformance.engines.gated import GatedEngine, GatedGeneration
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt, Script, Token
from pytest_grpc_conformance.protocols.base import Message, WireProtocol
from tests.faults.plant import Call, Mutation

# Messages.

Alteration = Callable[[Message], Iterable[Message]]
"""From one message to those that go out in its place."""


def kind(message: Message) -> str:
    """The member of a response that is set."""
    oneofs = message.DESCRIPTOR.oneofs_by_name
    return str(message.WhichOneof("event" if "event" in oneofs else "response"))


def body(message: Message) -> Any:
    """The member itself."""
    return getattr(message, kind(message))


def has_tokens(message: Message) -> bool:
    return kind(message) in ("token", "chunk")


def is_end(message: Message) -> bool:
    return kind(message) in ("finished", "complete")


def index_of(message: Message) -> int:
    """The sequence that a token or terminal message is for."""
    part = body(message)
    return int(part.output_index if hasattr(part, "output_index") else part.sequence_index)


def set_index(message: Message, index: int) -> None:
    """A token or terminal message is for another sequence."""
    part = body(message)
    if hasattr(part, "output_index"):
        part.output_index = index
    elif hasattr(part, "sequence_index"):
        part.sequence_index = index


def leave_index_zero_out(message: Message) -> None:
    """A message for the first sequence does not name it."""
    part = body(message)
    if getattr(part, "output_index", None) == 0:
        part.ClearField("output_index")


def copy(message: Message) -> Message:
    """A message of its own with the same content."""
    other = type(message)()
    other.CopyFrom(message)
    return other


def records(message: Message) -> Any:
    """The repeated field with the tokens of a token message."""
    part = body(message)
    return part.token_ids if hasattr(part, "token_ids") else part.tokens


def token_ids(message: Message) -> list[int]:
    """The ids on a token message."""
    return [getattr(record, "token_id", record) for record in records(message)]


def counts_of(message: Message) -> Any:
    """What holds the token counts of a message, ``None`` where there are none."""
    if not hasattr(message, "usage"):
        return body(message)
    return message.usage if message.HasField("usage") else None


def scored_tokens(message: Message) -> list[Any]:
    """The records with scores on a token or terminal message; both protocols name their fields alike."""
    part = body(message)
    return list(part.tokens if hasattr(part, "tokens") else getattr(part, "logprobs", ()))


def candidates_of(record: Any) -> Any:
    """The repeated field with the alternatives of a token."""
    return record.candidates if hasattr(record, "candidates") else record.top_logprobs


def streamed(make: Callable[[Call], Alteration]) -> Mutation:
    """Each message is replaced by what a function of its call's own makes of it."""

    async def mutate(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
        step = make(call)
        async for message in messages:
            for changed in step(message):
                yield changed

    return mutate


def each(change: Callable[[Message], object]) -> Mutation:
    """Each message is changed in place."""

    def make(call: Call) -> Alteration:
        def step(message: Message) -> Iterable[Message]:
            change(message)
            return (message,)

        return step

    return streamed(make)


def without(unwanted: Callable[[Message], bool]) -> Mutation:
    """Some messages are lost."""
    return streamed(lambda call: lambda message: () if unwanted(message) else (message,))


# Requests.


def asked(change: Callable[[Message], object]) -> Mutation:
    """The servicer reads another request than the one that was sent."""

    async def mutate(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
        change(call.request)  # The reference servicer has not begun: it is an asynchronous generator.
        async for message in messages:
            yield message

    return mutate


# Tokens and engines.


def with_scores_of(token: Token, other: Token) -> Token:
    """A token that is scored as another one is."""
    return replace(token, logprob=other.logprob, rank=other.rank, candidates=other.candidates)


class RememberingEngine(GatedEngine):
    """An engine that tells a fault what the script and the gate of a request are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gates: dict[str | None, Gate] = {}

    def prepare(self, request_id: str | None, script: Script, *, open: bool = False) -> Gate:
        self.gates[request_id] = gate = super().prepare(request_id, script, open=open)
        return gate


def engine_asked(
    change: Callable[[GenerationParameters, Script], GenerationParameters],
) -> type[GatedEngine]:
    """An engine that is asked for something else than what the request says."""

    class AskedOtherwise(RememberingEngine):
        def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> GatedGeneration:
            return super().submit(request_id, prompt, change(parameters, self.gates[request_id].script))

    return AskedOtherwise


def engine_told(change: Callable[[Script], Script]) -> type[GatedEngine]:
    """An engine that plays another script than the one that the case expects."""

    class ToldOtherwise(GatedEngine):
        def prepare(self, request_id: str | None, script: Script, *, open: bool = False) -> Gate:
            return super().prepare(request_id, change(script), open=open)

    return ToldOtherwise


def engine_given(change: Callable[[Prompt], Prompt]) -> type[GatedEngine]:
    """An engine that gets another prompt than the one that was sent."""

    class GivenOtherwise(GatedEngine):
        def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> GatedGeneration:
            return super().submit(request_id, change(prompt), parameters)

    return GivenOtherwise


# Refusals.


class Refusal(Exception):
    """The reference servicer has refused a request with this status."""

    def __init__(self, code: Any, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details


class _Context:
    """The call's context, whose ``abort`` leaves the status to the fault."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        raise Refusal(code, details)


Instead = Callable[[Refusal, Call], AsyncIterator[Message]]
"""What a faulty servicer does where the reference servicer refuses."""


def on_refusal(instead: Instead) -> Callable[[Any, WireProtocol, GatedEngine], Any]:
    """A servicer that does something else where the reference servicer refuses a request."""

    class Refusing:
        def __init__(self, reference: Any, wire: WireProtocol, engine: GatedEngine) -> None:
            self._reference = reference
            self._wire = wire
            self._engine = engine

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reference, name)

        async def Generate(self, request: Message, context: Any) -> AsyncIterator[Message]:
            call = Call(self._wire, self._engine, request, context)
            try:
                async for message in self._reference.Generate(request, _Context(context)):
                    yield message
            except Refusal as refusal:
                async for message in instead(refusal, call):
                    yield message

    return lambda servicer, wire, engine: (
        Refusing(servicer, wire, engine) if hasattr(servicer, "Generate") else servicer
    )
