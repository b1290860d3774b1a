"""Faults in what a server takes for a gRPC request."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_grpc_conformance.targets.library import path
from tests.faults.faulty_library import FaultyLibrary
from tests.faults.frame_proxy import Fields, FrameFault, Passing
from tests.faults.plant import Mutant
from tests.faults.strict_requests import Refusal, StrictRequests, answering, malformed
from tests.faults.table import WIRE, Fault


def of(layer: type[FrameFault]) -> Mutant:
    """A server with this layer before it."""
    return Mutant(library=FaultyLibrary(frames=layer))


def with_value(fields: Fields, name: bytes, value: bytes) -> Fields:
    """The fields with another value of one of them."""
    return tuple((key, value if key == name else old) for key, old in fields)


class ContentTypeBeforeTe(StrictRequests):
    def refusal(self, fields: Fields) -> Refusal | None:
        names = [name for name, _ in fields]
        if b"te" in names and b"content-type" in names[: names.index(b"te")]:
            return answering(415)
        return super().refusal(fields)


class NoSubtypes(StrictRequests):
    def type_refusal(self, value: bytes) -> Refusal | None:
        return None if value == b"application/grpc" else answering(415)


class OtherTypeIs400(StrictRequests):
    def type_refusal(self, value: bytes) -> Refusal | None:
        return answering(400) if super().type_refusal(value) else None


class NoTypeIsGrpc(StrictRequests):
    def type_refusal(self, value: bytes) -> Refusal | None:
        return super().type_refusal(value or b"application/grpc")


class PrefixIsEnough(StrictRequests):
    def type_refusal(self, value: bytes) -> Refusal | None:
        return None if value.startswith(b"application/grpc") else answering(415)


class ErrorsOfOtherType(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.is_trailers and b":status" in dict(passing.fields or ()):
            return [passing.with_field("content-type", "text/plain")]
        return [passing]


class AnyVerb(StrictRequests):
    def refusal(self, fields: Fields) -> Refusal | None:
        return super().refusal(with_value(fields, b":method", b"POST"))

    def passed_on(self, fields: Fields) -> Fields:
        return with_value(fields, b":method", b"POST")


class TeUnread(StrictRequests):
    def te_fits(self, value: bytes | None) -> bool:
        return True

    def passed_on(self, fields: Fields) -> Fields:
        return (*(item for item in fields if item[0] != b"te"), (b"te", b"trailers"))


class TeErrorSticks(StrictRequests):
    """grpcio does the same, by what it keeps in its compression table."""

    wrong = False

    def te_fits(self, value: bytes | None) -> bool:
        self.wrong = self.wrong or not super().te_fits(value)
        return not self.wrong


class FirstPseudoFieldWins(StrictRequests):
    def pseudo_fields_fit(self, names: Sequence[bytes]) -> bool:
        return super().pseudo_fields_fit(list(dict.fromkeys(names)))


class PseudoFieldsAnywhere(StrictRequests):
    def pseudo_fields_fit(self, names: Sequence[bytes]) -> bool:
        return super().pseudo_fields_fit(sorted(names))


class FtpRefused(StrictRequests):
    def refusal(self, fields: Fields) -> Refusal | None:
        return malformed if dict(fields)[b":scheme"] == b"ftp" else super().refusal(fields)

    def passed_on(self, fields: Fields) -> Fields:
        return with_value(fields, b":scheme", b"http")


class AuthorityNeeded(StrictRequests):
    def refusal(self, fields: Fields) -> Refusal | None:
        return super().refusal(fields) if b":authority" in dict(fields) else malformed


class NoAuthorityEmptyAnswer(StrictRequests):
    def refusal(self, fields: Fields) -> Refusal | None:
        if not {b":authority", b"host"} & dict(fields).keys():
            return answering(200, content_type="application/grpc", grpc_status="0")
        return super().refusal(fields)


class LengthOfMessages(StrictRequests):
    def declared(self, fields: Fields) -> int | None:
        declared = super().declared(fields)
        return None if declared is None else declared - 5


class LengthIsAtMost(StrictRequests):
    """Takes content-length for a limit."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.ends_stream and passing.stream in self._lacking:
            self._lacking[passing.stream] = min(len(passing.payload), self._lacking[passing.stream])
        return super().from_client(passing)


class UserAgentNeeded(StrictRequests):
    def refusal(self, fields: Fields) -> Refusal | None:
        return super().refusal(fields) if b"user-agent" in dict(fields) else answering(400)


class ExpectationFails(StrictRequests):
    def refusal(self, fields: Fields) -> Refusal | None:
        return answering(417) if b"expect" in dict(fields) else super().refusal(fields)


class UnknownPathIs404(StrictRequests):
    def refusal(self, fields: Fields) -> Refusal | None:
        return super().refusal(fields) if dict(fields)[b":path"] == path("Echo").encode() else answering(404)


class CaseFolded(StrictRequests):
    def passed_on(self, fields: Fields) -> Fields:
        folded = dict(fields)[b":path"].lower() == path("Echo").lower().encode()
        return with_value(fields, b":path", path("Echo").encode()) if folded else fields


class UnknownPathIsNotFound(StrictRequests):
    def refusal(self, fields: Fields) -> Refusal | None:
        if dict(fields)[b":path"] == path("Echo").encode():
            return super().refusal(fields)
        return answering(200, content_type="application/grpc", grpc_status="5")


class QueryCutOff(StrictRequests):
    def passed_on(self, fields: Fields) -> Fields:
        name = dict(fields)[b":path"].partition(b"?")[0].partition(b"#")[0]
        return with_value(fields, b":path", name)


class BadPathEndsConnection(StrictRequests):
    def refuse(self, stream: int, refusal: Refusal) -> None:
        self.close()


class AsciiPathsOnly(StrictRequests):
    def well_formed(self, fields: Fields) -> bool:
        return dict(fields)[b":path"].isascii() and super().well_formed(fields)


content_type_before_te = of(ContentTypeBeforeTe)
no_subtypes = of(NoSubtypes)
other_type_is_400 = of(OtherTypeIs400)
no_type_is_grpc = of(NoTypeIsGrpc)
prefix_is_enough = of(PrefixIsEnough)
errors_of_other_type = of(ErrorsOfOtherType)
any_verb = of(AnyVerb)
te_unread = of(TeUnread)
te_error_sticks = of(TeErrorSticks)
first_pseudo_field_wins = of(FirstPseudoFieldWins)
pseudo_fields_anywhere = of(PseudoFieldsAnywhere)
ftp_refused = of(FtpRefused)
authority_needed = of(AuthorityNeeded)
no_authority_empty_answer = of(NoAuthorityEmptyAnswer)
length_of_messages = of(LengthOfMessages)
length_is_at_most = of(LengthIsAtMost)
user_agent_needed = of(UserAgentNeeded)
expectation_fails = of(ExpectationFails)
unknown_path_is_404 = of(UnknownPathIs404)
case_folded = of(CaseFolded)
unknown_path_is_not_found = of(UnknownPathIsNotFound)
query_cut_off = of(QueryCutOff)
bad_path_ends_connection = of(BadPathEndsConnection)
ascii_paths_only = of(AsciiPathsOnly)
strict = of(StrictRequests)
"""No fault: what all of the above have in common."""


def _fault(mutant: str, **rows: str) -> Fault:
    caught_by = {f"grpc_headers/{function}": f"GRPC-HDR-{row}" for function, row in rows.items()}
    return Fault(mutant, caught_by=caught_by, protocols=WIRE)


FAULTS = (
    _fault("content_type_before_te", fields_in_any_order="01"),
    _fault("no_subtypes", subtype_is_accepted="02"),
    _fault("other_type_is_400", other_content_type_gets_415="03"),
    _fault("no_type_is_grpc", other_content_type_gets_415="03"),
    _fault("prefix_is_enough", other_type_with_the_prefix_is_no_grpc="04"),
    _fault("errors_of_other_type", content_type_of_the_response="05"),
    _fault("any_verb", other_verb_does_not_call="06"),
    _fault("te_unread", te_is_required="07", other_te_is_malformed="08"),
    _fault("te_error_sticks", malformed_te_costs_no_other_request="08"),
    _fault("unknown_path_is_404", unknown_path_is_unimplemented="09", unusual_path_is_unimplemented="20"),
    _fault("case_folded", unknown_path_is_unimplemented="09"),
    _fault("unknown_path_is_not_found", unknown_path_of_a_stock_client="09"),
    _fault("query_cut_off", path_is_opaque="10"),
    _fault("bad_path_ends_connection", path_without_slash="11"),
    _fault("first_pseudo_field_wins", malformed_pseudo_fields="12"),
    _fault("pseudo_fields_anywhere", malformed_pseudo_fields="12"),
    _fault("ftp_refused", other_scheme_is_treated_consistently="13"),
    _fault("authority_needed", host_without_authority="14"),
    _fault("no_authority_empty_answer", neither_host_nor_authority="14"),
    _fault("length_of_messages", matching_content_length="15"),
    _fault("length_is_at_most", other_content_length_is_malformed="15"),
    _fault("user_agent_needed", user_agent_is_optional="16"),
    _fault("expectation_fails", unknown_fields_do_no_harm="19"),
    _fault("ascii_paths_only", unusual_path_is_unimplemented="20"),
)
