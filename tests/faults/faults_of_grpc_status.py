"""Faults of status codes, their messages, and the trailers that carry them."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from typing import Any

from pytest_grpc_conformance.wire.frames import ErrorCode, Flag, Kind
from tests.faults.faulty_library import FaultyContext, FaultyLibrary
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault

DETAILS = b"grpc-status-details-bin"


class TrailersFault(FrameFault):
    """A fault in the trailers alone; those of an error before any message are the only block of their stream."""

    def __init__(self) -> None:
        self.begun: set[int] = set()

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if not passing.is_trailers:
            if passing.fields is not None:
                self.begun.add(passing.stream)
            return [passing]
        return self.trailers(passing, dict(passing.fields or ()))

    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        raise NotImplementedError


class StatusInTwoDigits(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        return [passing.with_field("grpc-status", str(int(fields[b"grpc-status"]) % 8))]


class SuccessUnsaid(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        return [passing.with_field("grpc-status", None) if fields[b"grpc-status"] == b"0" else passing]


class StatusInHeadersToo(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        early = passing.fields is not None and not passing.is_trailers
        return [passing.with_field("grpc-status", "0") if early else passing]


class EmptyDataEnds(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        block = passing.but(flags=passing.flags & ~Flag.END_STREAM)
        return [block, Passing(Kind.DATA, Flag.END_STREAM, passing.stream)]


class ResetAfterTrailers(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        reset = Passing(Kind.RST_STREAM, 0, passing.stream, int(ErrorCode.INTERNAL_ERROR).to_bytes(4, "big"))
        return [passing, reset]


class BareErrors(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        return [passing if passing.stream in self.begun else passing.with_field("content-type", None)]


class HttpStatusInTrailers(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        return [passing.with_field(":status", "200")]


class HttpStatusOfErrors(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        missing = fields[b"grpc-status"] in (b"5", b"12") and passing.stream not in self.begun
        if not missing:
            return [passing]
        rest = tuple(field for field in passing.fields or () if field[0] != b":status")
        return [passing.but(fields=((b":status", b"404"), *rest))]


class MessageFault(TrailersFault):
    """A fault in the text of `grpc-message`; ``text`` changes what is sent."""

    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        return [passing.with_field("grpc-message", self.text(fields.get(b"grpc-message", b"")) or None)]

    def text(self, sent: bytes) -> bytes:
        raise NotImplementedError


class MessageUnencoded(MessageFault):
    def text(self, sent: bytes) -> bytes:
        return urllib.parse.unquote_to_bytes(sent)


class MessageOfForms(MessageFault):
    def text(self, sent: bytes) -> bytes:
        return sent.replace(b"%20", b" ").replace(b" ", b"+")


class MessageSaysNone(MessageFault):
    def text(self, sent: bytes) -> bytes:
        return sent or b"None"


class MessageCut(MessageFault):
    def text(self, sent: bytes) -> bytes:
        return sent[:4096]


class MessageStripped(MessageFault):
    def text(self, sent: bytes) -> bytes:
        return sent.replace(b"%20", b" ").strip()


class MetadataGivesStatus(FaultyContext):
    """Metadata is looked through for a status after the handler's."""

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._real.set_trailing_metadata(metadata)
        for key, value in metadata:
            if key == "grpc-status":
                self._real.set_code(int(value))


class UrlSafeBase64(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        value = fields.get(DETAILS)
        if value is None:
            return [passing]
        return [passing.with_field(DETAILS.decode(), value.translate(bytes.maketrans(b"+/", b"-_")))]


class DetailsNeedAnError(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        wrong = DETAILS in fields and fields[b"grpc-status"] == b"0"
        return [passing.with_field("grpc-status", "13") if wrong else passing]


status_modulo_eight = Mutant(library=FaultyLibrary(frames=StatusInTwoDigits))
success_unsaid = Mutant(library=FaultyLibrary(frames=SuccessUnsaid))
status_in_headers_too = Mutant(library=FaultyLibrary(frames=StatusInHeadersToo))
empty_data_ends = Mutant(library=FaultyLibrary(frames=EmptyDataEnds))
reset_after_trailers = Mutant(library=FaultyLibrary(frames=ResetAfterTrailers))
bare_errors = Mutant(library=FaultyLibrary(frames=BareErrors))
http_status_in_trailers = Mutant(library=FaultyLibrary(frames=HttpStatusInTrailers))
http_status_of_errors = Mutant(library=FaultyLibrary(frames=HttpStatusOfErrors))
message_unencoded = Mutant(library=FaultyLibrary(frames=MessageUnencoded))
message_of_forms = Mutant(library=FaultyLibrary(frames=MessageOfForms))
message_says_none = Mutant(library=FaultyLibrary(frames=MessageSaysNone))
message_cut = Mutant(library=FaultyLibrary(frames=MessageCut))
message_stripped = Mutant(library=FaultyLibrary(frames=MessageStripped))
metadata_gives_status = Mutant(library=FaultyLibrary(context=MetadataGivesStatus))
url_safe_base64 = Mutant(library=FaultyLibrary(frames=UrlSafeBase64))
details_need_an_error = Mutant(library=FaultyLibrary(frames=DetailsNeedAnError))

CAUGHT = {
    "status_modulo_eight": {"abort_sends_its_code": "GRPC-STATUS-01"},
    "success_unsaid": {
        "success_has_a_status": "GRPC-STATUS-02",
        "one_status_in_the_last_block": "GRPC-STATUS-03",
    },
    "status_in_headers_too": {"one_status_in_the_last_block": "GRPC-STATUS-03"},
    "empty_data_ends": {"trailers_end_the_stream": "GRPC-STATUS-04"},
    "reset_after_trailers": {"trailers_end_the_stream": "GRPC-STATUS-04"},
    "bare_errors": {"error_before_any_message": "GRPC-STATUS-05"},
    "http_status_in_trailers": {
        "no_pseudo_header_in_trailers": "GRPC-STATUS-06",
        "http_status_stays_200": "GRPC-STATUS-07",
    },
    "http_status_of_errors": {
        "abort_sends_its_code": "GRPC-STATUS-07",
        "error_before_any_message": "GRPC-STATUS-05",
        "http_status_stays_200": "GRPC-STATUS-07",
    },
    "message_unencoded": {"message_is_percent_encoded": "GRPC-STATUS-08"},
    "message_of_forms": {"printable_text_bare_or_encoded": "GRPC-STATUS-09"},
    "message_says_none": {"no_message_without_text": "GRPC-STATUS-10"},
    "message_cut": {"long_message_arrives": "GRPC-STATUS-11"},
    "message_stripped": {"spaces_around_details": "GRPC-STATUS-12"},
    "metadata_gives_status": {"reserved_keys_do_not_override": "GRPC-STATUS-13"},
    "url_safe_base64": {"status_details_arrive": "GRPC-STATUS-28"},
    "details_need_an_error": {"status_details_with_success": "GRPC-STATUS-29"},
}
FAULTS = tuple(
    Fault(mutant, caught_by={f"grpc_status/{function}": rows for function, rows in caught.items()}, protocols=WIRE)
    for mutant, caught in CAUGHT.items()
)
