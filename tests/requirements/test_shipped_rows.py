"""The shipped rows are complete and well formed."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from pytest_grpc_conformance.requirements import LEVELS, catalogue

ROWS = {row.id: row for row in catalogue().rows}
ANY_ID = re.compile(r"\b(?:OE|SMG|GRPC)-[A-Z0-9]+-[0-9]+\b")

# group: number of MUST, SHOULD, MAY and REF rows
EXPECTED = {
    "GRPC-STATUS": (25, 4, 0, 0),
    "GRPC-MD": (22, 13, 0, 0),
    "GRPC-DL": (16, 5, 0, 0),
    "GRPC-CAN": (15, 4, 0, 0),
    "GRPC-MSG": (27, 8, 0, 0),
    "GRPC-HDR": (11, 9, 0, 0),
    "GRPC-H2": (28, 6, 0, 0),
    "GRPC-KA": (5, 6, 0, 0),
    "GRPC-CTX": (25, 8, 0, 0),
    "GRPC-HND": (18, 6, 0, 0),
    "GRPC-INT": (7, 5, 0, 0),
    "GRPC-LIFE": (22, 9, 0, 0),
    "GRPC-SVC": (9, 5, 0, 0),
    "GRPC-FAIR": (8, 6, 0, 0),
    "OE-WIRE": (7, 5, 1, 4),
    "OE-GEN": (15, 20, 1, 10),
    "OE-TOK": (7, 5, 2, 4),
    "OE-FIN": (6, 8, 1, 4),
    "OE-STOP": (9, 9, 1, 4),
    "OE-LP": (11, 13, 0, 8),
    "OE-N": (7, 3, 0, 4),
    "OE-USE": (5, 5, 1, 3),
    "OE-ERR": (9, 9, 0, 9),
    "OE-HLT": (3, 10, 0, 4),
    "OE-ABT": (10, 8, 1, 6),
    "SMG-GEN": (11, 10, 0, 7),
    "SMG-SMP": (10, 9, 0, 3),
    "SMG-CHK": (4, 7, 1, 3),
    "SMG-CMP": (7, 7, 1, 5),
    "SMG-N": (1, 6, 0, 0),
    "SMG-LP": (3, 8, 0, 5),
    "SMG-USE": (0, 4, 1, 1),
    "SMG-ERR": (1, 6, 0, 4),
    "SMG-ABT": (1, 7, 0, 4),
    "SMG-HLT": (2, 2, 0, 2),
}
PARITY = {
    "GRPC-STATUS": 12,
    "GRPC-MD": 20,
    "GRPC-DL": 9,
    "GRPC-CAN": 11,
    "GRPC-MSG": 7,
    "GRPC-HDR": 2,
    "GRPC-H2": 2,
    "GRPC-KA": 9,
    "GRPC-CTX": 32,
    "GRPC-HND": 22,
    "GRPC-INT": 12,
    "GRPC-LIFE": 31,
    "GRPC-SVC": 10,
    "GRPC-FAIR": 7,
}


class TestShippedRows:
    """What holds for every row in the package's own files."""

    def test_group_has_its_rows_by_level(self) -> None:
        counted = Counter((row.group_id, row.level) for row in catalogue().rows)
        found = {group.id: tuple(counted[group.id, level] for level in LEVELS) for group in catalogue().groups}
        assert found == EXPECTED

    def test_total(self) -> None:
        sizes = {name: len(catalogue().for_protocol(name)) for name in ("openengine", "smg", "grpc")}
        assert sizes == {"openengine": 252, "smg": 143, "grpc": 332}

    def test_parity_rows(self) -> None:
        assert Counter(row.group_id for row in catalogue().rows if row.oracle == "parity") == PARITY

    def test_ids_are_unique(self) -> None:
        assert len(ROWS) == len(catalogue().rows) == 727

    def test_ids_of_a_group_count_up_from_one(self) -> None:
        for group in catalogue().groups:
            numbers = [int(row.id.rpartition("-")[2]) for row in catalogue().of_group(group.id)]
            assert numbers == list(range(1, len(numbers) + 1)), group.id

    @pytest.mark.parametrize("name", ["openengine", "smg", "grpc"])
    def test_group_of_a_row_is_in_its_file(self, name: str) -> None:
        prefix = {"openengine": "OE", "smg": "SMG", "grpc": "GRPC"}[name]
        assert catalogue().of_group(prefix) == catalogue().for_protocol(name)

    def test_statement_is_one_sentence(self) -> None:
        more_than_one = re.compile(r"[.!?][\"'`)]*\s")
        for row in ROWS.values():
            assert 10 <= len(row.statement) <= 400, row.id
            assert row.statement[0] == "`" or row.statement[0].isupper(), row.id
            assert row.statement.endswith("."), row.id
            assert not more_than_one.search(row.statement), row.id

    def test_must_row_has_a_source(self) -> None:
        document = re.compile(r"OpenEngine v1|openengine/v1/|OE-|SMG protos|trtllm_service\.proto|gRPC|RFC [79]")
        practice = re.compile(r"grpcio|grpc\.aio|connectrpc|HTTP/2|asyncio|idiom of handlers|stated by no document")
        for row in ROWS.values():
            if row.level == "MUST":
                assert document.search(row.source) or practice.search(row.source), (row.id, row.source)

    def test_derived_row_says_so_in_its_source(self) -> None:
        assert {row.id for row in ROWS.values() if row.derived} == {
            row.id for row in ROWS.values() if "derived" in row.source
        }

    def test_source_and_observe_are_spelled_out(self) -> None:
        shorthand = re.compile(
            r"\b(?:BB|GE|CFG|Tt)\b|\b(?:[TGSpc]|Tt|api):\S|\bPR [0-9]|\b(?:gen|kv|srv|mdl|lif|err|oe) [A-Z]"
        )
        for row in ROWS.values():
            assert not shorthand.search(f"{row.source} {row.observe} {row.statement}"), row.id

    def test_only_reference_rows_speak_of_one_implementation(self) -> None:
        for row in ROWS.values():
            if row.oracle != "reference":
                assert "TensorRT" not in row.statement + row.observe, row.id

    def test_ids_in_the_texts_exist(self) -> None:
        for row in ROWS.values():
            named = ANY_ID.findall(f"{row.statement} {row.source} {row.observe}")
            assert set(named) <= ROWS.keys(), row.id

    def test_texts_name_no_machine_path(self) -> None:
        for row in ROWS.values():
            assert not re.search(r"(?:^|\s)/(?:work|tmp|home|root|usr|Users)/", str(row)), row.id
