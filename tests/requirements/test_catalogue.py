"""Looking rows up, and loading them from files: both say what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from toy_rows import GOOD, GROUP, row_toml, written

import pytest_grpc_conformance
from pytest_grpc_conformance.requirements import (
    BrokenCatalogue,
    Requirement,
    UnknownRequirement,
    catalogue,
    load,
)


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


# Loading.


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


def test_row_says_why_it_is_unobserved(tmp_path: Path) -> None:
    reason = "x" * 200
    text = GROUP + row_toml(unobserved=f'"{reason}"') + row_toml(id='"XX-ONE-002"')
    assert [row.unobserved for row in load(written(tmp_path, toy=text)).rows] == [reason, None]


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
    "number-for-reason": (
        GROUP + row_toml(unobserved="7"),
        "XX-ONE-001: key 'unobserved' is not a text, or is empty; write",
    ),
    "empty-reason": (
        GROUP + row_toml(unobserved='""'),
        "XX-ONE-001: key 'unobserved' is not a text, or is empty; write",
    ),
    "long-reason": (
        GROUP + row_toml(unobserved=f'"{"x" * 201}"'),
        "XX-ONE-001: key 'unobserved' has 201 characters; say why in one sentence of at most 200",
    ),
    "reason-of-two-lines": (
        GROUP + row_toml(unobserved=r'"First.\nSecond."'),
        "XX-ONE-001: key 'unobserved' has more than one line; say why in one sentence",
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
