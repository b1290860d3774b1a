"""The shipped rows are complete and well formed, and the loader and the coverage join say what is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import pytest_grpc_conformance
from pytest_grpc_conformance.requirements import (
    LEVELS,
    BrokenCatalogue,
    Catalogue,
    Requirement,
    UnknownRequirement,
    catalogue,
    load,
)
from pytest_grpc_conformance.requirements.coverage import CaseRef, cover, render_json, render_text

ROWS = {row.id: row for row in catalogue().rows}
ANY_ID = re.compile(r"\b(?:OE|SMG|GRPC)-[A-Z0-9]+-[0-9]+\b")

# group: number of MUST, SHOULD, MAY and REF rows
EXPECTED = {
    "GRPC-STATUS": (25, 4, 0, 0),
    "GRPC-DL": (16, 5, 0, 0),
    "GRPC-CAN": (15, 4, 0, 0),
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
    "GRPC-DL": 9,
    "GRPC-CAN": 11,
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
        assert sizes == {"openengine": 252, "smg": 143, "grpc": 128}

    def test_parity_rows(self) -> None:
        assert Counter(row.group_id for row in catalogue().rows if row.oracle == "parity") == PARITY

    def test_ids_are_unique(self) -> None:
        assert len(ROWS) == len(catalogue().rows) == 523

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
        document = re.compile(r"OpenEngine v1|openengine/v1/|OE-|SMG protos|trtllm_service\.proto|gRPC|RFC 9113")
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


def test_get_gives_the_row() -> None:
    row = catalogue().get("OE-TOK-003")
    assert (row.id, row.oracle, row.level, row.derived) == ("OE-TOK-003", "spec", "MUST", True)
    assert row.statement.startswith("The joined text of an index")
    assert catalogue().group_of(row).title == "Token records, text deltas, boundaries"


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        pytest.param("OE-TOK-03", "OE-TOK-003", id="digit-missing"),
        pytest.param("oe-tok-003", "OE-TOK-003", id="lower-case"),
        pytest.param("SMG-CHKK-001", "SMG-CHK-001", id="letter-doubled"),
    ],
)
def test_unknown_id_names_the_nearest(asked: str, near: str) -> None:
    with pytest.raises(UnknownRequirement) as caught:
        catalogue().get(asked)
    message = str(caught.value)
    assert message.startswith(f"no requirement {asked!r}; nearest: ")
    assert near in message
    assert "\n" not in message


def test_unknown_id_far_from_all() -> None:
    with pytest.raises(UnknownRequirement, match=r"^no requirement 'zzz'; nothing is near it$"):
        catalogue().get("zzz")


def test_unknown_group_names_the_nearest() -> None:
    with pytest.raises(UnknownRequirement, match=r"^no requirement group 'OE-GEM'; nearest: OE-GEN"):
        catalogue().of_group("OE-GEM")


def test_group_prefix_ends_at_a_hyphen() -> None:
    with pytest.raises(UnknownRequirement):
        catalogue().of_group("OE-G")


def test_unknown_protocol_names_the_nearest() -> None:
    with pytest.raises(UnknownRequirement, match=r"^no requirements for protocol 'openengin'; nearest: openengine"):
        catalogue().for_protocol("openengin")


def test_catalogue_is_read_once() -> None:
    assert catalogue() is catalogue()


def test_rows_are_read_without_grpc_protobuf_or_pytest() -> None:
    program = (
        "import sys; from pytest_grpc_conformance.requirements import catalogue, coverage; catalogue();"
        "print([name for name in ('grpc', 'google.protobuf', 'pytest', '_pytest') if name in sys.modules])"
    )
    root = Path(pytest_grpc_conformance.__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.stdout.strip(), ran.stderr) == ("[]", "")


GROUP = '[[group]]\nid = "XX-ONE"\ntitle = "First things"\n'
GOOD = {
    "id": '"XX-ONE-001"',
    "oracle": '"spec"',
    "level": '"MUST"',
    "statement": '"The server answers."',
    "source": '"A document, a section"',
    "observe": '"black box"',
}


def row_toml(**changes: str | None) -> str:
    """A good row as TOML, with keys changed, added, or (``None``) taken away."""
    keys = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    return "[[requirement]]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())


def written(folder: Path, **files: str) -> Path:
    """The folder, with one TOML file per keyword."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder


def test_load_reads_a_folder(tmp_path: Path) -> None:
    read = load(written(tmp_path, toy=GROUP + row_toml(derived="true")))
    assert read.rows == (
        Requirement("XX-ONE-001", "spec", "MUST", "The server answers.", "A document, a section", True, "black box"),
    )
    assert [(group.id, group.title, group.protocol) for group in read.groups] == [("XX-ONE", "First things", "toy")]


def test_load_reads_given_files_in_order_of_name(tmp_path: Path) -> None:
    second = GROUP.replace("ONE", "TWO") + row_toml(id='"XX-TWO-001"')
    folder = written(tmp_path, a=GROUP + row_toml(), b=second, c="not TOML and not asked for")
    read = load([folder / "b.toml", folder / "a.toml"])
    assert [row.id for row in read.rows] == ["XX-ONE-001", "XX-TWO-001"]
    assert read.for_protocol("b") == read.of_group("XX-TWO")


def test_load_leaves_other_files_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("no TOML", encoding="utf-8")
    assert len(load(written(tmp_path, toy=GROUP + row_toml())).rows) == 1


def test_derived_is_false_when_left_out(tmp_path: Path) -> None:
    assert load(written(tmp_path, toy=GROUP + row_toml())).rows[0].derived is False


def test_folder_without_rows_is_broken(tmp_path: Path) -> None:
    with pytest.raises(BrokenCatalogue, match=r"no \.toml file there; name the folder"):
        load(tmp_path)


@pytest.mark.parametrize("key", sorted(GOOD))
def test_row_without_a_key_is_broken(tmp_path: Path, key: str) -> None:
    where = "requirement number 1" if key == "id" else "XX-ONE-001"
    text = GROUP + row_toml(**{key: None})
    with pytest.raises(BrokenCatalogue) as caught:
        load(written(tmp_path, toy=text))
    assert str(caught.value) == f"toy.toml: {where}: key {key!r} is missing; add it"


MALFORMED = {
    "empty-text": (
        GROUP + row_toml(source='" "'),
        "XX-ONE-001: key 'source' is not a text, or is empty; write",
    ),
    "number-for-text": (GROUP + row_toml(statement="7"), "XX-ONE-001: key 'statement' is not a text, or is"),
    "text-for-flag": (
        GROUP + row_toml(derived='"yes"'),
        "XX-ONE-001: key 'derived' is not a boolean; write true",
    ),
    "unknown-key": (
        GROUP + row_toml(derivd="true"),
        "XX-ONE-001: unknown key 'derivd'; the keys are id, oracle,",
    ),
    "unknown-oracle": (
        GROUP + row_toml(oracle='"SPEC"'),
        "XX-ONE-001: unknown oracle 'SPEC'; use one of spec, parity, reference",
    ),
    "unknown-level": (
        GROUP + row_toml(level='"SHALL"'),
        "XX-ONE-001: unknown level 'SHALL'; use one of MUST, SHOULD, MAY, REF",
    ),
    "ref-by-the-spec": (
        GROUP + row_toml(level='"REF"'),
        "XX-ONE-001: level 'REF' with oracle 'spec'; level REF and",
    ),
    "must-by-reference": (
        GROUP + row_toml(oracle='"reference"'),
        "XX-ONE-001: level 'MUST' with oracle 'reference'; level REF and",
    ),
    "foreign-group": (
        GROUP + row_toml(id='"XX-TWO-001"'),
        "XX-TWO-001: not in the file's groups (XX-ONE); correct it or add a [[group]]",
    ),
    "no-group": (row_toml(), "XX-ONE-001: not in the file's groups (none); correct it or"),
    "odd-id": (
        GROUP + row_toml(id='"XX-ONE-1a"'),
        "XX-ONE-1a: the id has not the form OE-GEN-001; correct it",
    ),
    "id-twice": (GROUP + row_toml() * 2, "XX-ONE-001: already used in toy.toml; give it another id"),
    "group-twice": (GROUP * 2 + row_toml(), "XX-ONE: already used in toy.toml; give it another id"),
    "group-without-title": ('[[group]]\nid = "XX-ONE"\n', "XX-ONE: key 'title' is missing; add it"),
    "misspelt-table": (
        GROUP + row_toml().replace("requirement", "requirements"),
        "requirements: unknown table; only [[group]] and [[requirement]] are read",
    ),
    "single-table": (
        GROUP + row_toml().replace("[[requirement]]", "[requirement]"),
        "requirement: not an array of tables; write [[requirement]]",
    ),
    "number-for-table": ("requirement = 7\n" + GROUP, "requirement: not an array of tables; write"),
    "no-toml": ("[[requirement\n", "not valid TOML ("),
}


@pytest.mark.parametrize("kind", sorted(MALFORMED))
def test_malformed_file_is_broken(tmp_path: Path, kind: str) -> None:
    text, expected = MALFORMED[kind]
    with pytest.raises(BrokenCatalogue) as caught:
        load(written(tmp_path, toy=text))
    message = str(caught.value)
    assert message.startswith(f"toy.toml: {expected}")
    assert "\n" not in message


def test_file_that_is_not_utf8_is_broken(tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_bytes(b'x = "\xff"')
    with pytest.raises(BrokenCatalogue, match=r"^toy\.toml: not valid TOML \(.*\); correct it there$"):
        load(tmp_path)


def test_id_in_two_files_is_broken(tmp_path: Path) -> None:
    first = GROUP + row_toml()
    with pytest.raises(BrokenCatalogue, match=r"^b\.toml: XX-ONE: already used in a\.toml; give it another id$"):
        load(written(tmp_path, a=first, b=first))


@pytest.fixture
def toy(tmp_path: Path) -> Catalogue:
    """Four rows in two groups, one of each level."""
    first = GROUP + row_toml() + row_toml(id='"XX-ONE-002"', level='"SHOULD"')
    second = '[[group]]\nid = "XX-TWO"\ntitle = "Second things"\n' + row_toml(
        id='"XX-TWO-001"', level='"MAY"', statement=f'"The server {"very " * 30}rarely answers."'
    )
    third = row_toml(id='"XX-TWO-002"', level='"REF"', oracle='"reference"')
    return load(written(tmp_path, toy=first + second + third))


CASES = (
    CaseRef("gen/answers", ("XX-ONE-001", "XX-TWO-001"), "The server MUST answer."),
    CaseRef("gen/again[greedy]", ("XX-ONE-001",), "The server MUST answer again."),
)


class TestCoverage:
    """The join of rows and cases, and its two views."""

    def test_every_row_is_kept_in_order(self, toy: Catalogue) -> None:
        assert [(entry.row.id, entry.case_ids) for entry in cover(toy, CASES)] == [
            ("XX-ONE-001", ("gen/answers", "gen/again[greedy]")),
            ("XX-ONE-002", ()),
            ("XX-TWO-001", ("gen/answers",)),
            ("XX-TWO-002", ()),
        ]

    def test_without_cases_all_shipped_rows_are_unchecked(self) -> None:
        coverage = cover(catalogue(), ())
        assert tuple(entry.row for entry in coverage) == catalogue().rows
        assert not any(entry.cases for entry in coverage)
        assert render_text(coverage).splitlines()[-1].startswith("523 rows: 0 checked, 523 unchecked (")

    def test_case_that_names_a_row_twice_counts_once(self, toy: Catalogue) -> None:
        case = CaseRef("gen/twice", ("XX-ONE-001", "XX-ONE-001"), "")
        assert cover(toy, [case, case])[0].case_ids == ("gen/twice",)

    def test_unknown_id_names_the_case(self, toy: Catalogue) -> None:
        case = CaseRef("gen/lost", ("XX-ONE-003",), "")
        with pytest.raises(
            UnknownRequirement, match=r"^case gen/lost: no requirement 'XX-ONE-003'; nearest: XX-ONE-00"
        ):
            cover(toy, [case])

    def test_text(self, toy: Catalogue) -> None:
        assert render_text(cover(toy, CASES), width=30).splitlines() == [
            "XX-ONE  First things",
            "  XX-ONE-001  MUST    spec       The server answers.             gen/answers, gen/again[greedy]",
            "  XX-ONE-002  SHOULD  spec       The server answers.             unchecked",
            "",
            "XX-TWO  Second things",
            "  XX-TWO-001  MAY     spec       The server very very very...    gen/answers",
            "  XX-TWO-002  REF     reference  The server answers.             unchecked",
            "",
            "4 rows: 2 checked, 2 unchecked (1 SHOULD, 1 REF)",
        ]

    def test_text_of_unchecked_rows_counts_all(self, toy: Catalogue) -> None:
        lines = render_text(cover(toy, CASES), unchecked_only=True).splitlines()
        assert [line.split()[0] for line in lines if line.startswith("  ")] == ["XX-ONE-002", "XX-TWO-002"]
        assert lines[-1] == "4 rows: 2 checked, 2 unchecked (1 SHOULD, 1 REF)"

    def test_text_drops_a_group_that_has_nothing_unchecked(self, toy: Catalogue) -> None:
        case = CaseRef("gen/all", tuple(row.id for row in toy.of_group("XX-ONE")), "")
        text = render_text(cover(toy, [case]), unchecked_only=True)
        assert "First things" not in text
        assert "Second things" in text

    def test_text_when_all_is_checked(self, toy: Catalogue) -> None:
        case = CaseRef("gen/all", tuple(row.id for row in toy.rows), "")
        assert render_text(cover(toy, [case]), unchecked_only=True) == "4 rows: 4 checked, 0 unchecked"

    def test_statement_is_cut_to_the_width(self, toy: Catalogue) -> None:
        long = toy.get("XX-TWO-001").statement
        assert long not in render_text(cover(toy, ()), width=40)
        assert long in render_text(cover(toy, ()), width=len(long))

    def test_json(self, toy: Catalogue) -> None:
        document = json.loads(render_json(cover(toy, CASES)))
        assert document["schema"] == 1
        assert document["counts"] == {
            "rows": 4,
            "checked": 2,
            "unchecked": {"MUST": 0, "SHOULD": 1, "MAY": 0, "REF": 1},
        }
        first, second = document["groups"]
        assert (first["id"], first["title"], first["protocol"]) == ("XX-ONE", "First things", "toy")
        assert first["rows"][0] == {
            "id": "XX-ONE-001",
            "oracle": "spec",
            "level": "MUST",
            "statement": "The server answers.",
            "source": "A document, a section",
            "derived": False,
            "observe": "black box",
            "cases": [
                {"id": "gen/answers", "summary": "The server MUST answer."},
                {"id": "gen/again[greedy]", "summary": "The server MUST answer again."},
            ],
        }
        assert [row["cases"] for row in second["rows"]][1] == []
