"""The terminal view: a matrix, then what needs attention, then one closing line."""

from __future__ import annotations

from pytest_grpc_conformance.reports.document import Document, Failure, Result
from pytest_grpc_conformance.reports.terminal import MOST_NAMED, WIDTH, render
from pytest_grpc_conformance.verdict import Verdict


def a_result(
    case_id: str = "area/case[smg]",
    target: str = "grpcio",
    protocol: str = "smg",
    verdict: Verdict = Verdict.PASSED,
    reason: str = "",
    problem: str | None = None,
) -> Result:
    failure = None if problem is None else Failure(problem)
    return Result(case_id, target, protocol, ("SMG-GEN-016",), "", verdict, 0.5, reason, failure)


def rendered(
    *results: Result, targets: tuple[tuple[str, str], ...] = (("grpcio", "1.85"),), notes: tuple[str, ...] = ()
) -> list[str]:
    return render(Document("1.2", targets, results, notes))


def test_target_is_named_once_over_the_columns_of_its_protocols() -> None:
    lines = rendered(
        a_result("cancel/a", "pygrpc-native", "openengine"),
        a_result("cancel/a", "grpcio", "openengine"),
        a_result("cancel/a", "grpcio", "smg"),
        a_result("first_token/a", "grpcio", "smg"),
        a_result("first_token/b", "grpcio", "smg"),
        a_result("first_token/c", "grpcio", "smg", Verdict.FAILED, problem="late"),
        targets=(("grpcio", "1.85.3"), ("pygrpc-native", "0.5")),
    )
    assert lines[:4] == [
        "             grpcio 1.85.3               pygrpc-native 0.5",
        "area         openengine  smg             openengine",
        "cancel       1 ok        1 ok            1 ok",
        "first_token  -           2 ok, 1 FAILED  -",
    ]


def test_name_that_is_wider_than_its_columns_makes_room_for_itself() -> None:
    lines = rendered(
        a_result(target="a-very-long-library-name"),
        a_result(target="b"),
        targets=(("a-very-long-library-name", "10.20.30"), ("b", "")),
    )
    assert lines[:3] == [
        "      a-very-long-library-name 10.20.30  b",
        "area  smg                                smg",
        "area  1 ok                               1 ok",
    ]


def test_columns_follow_the_order_of_the_targets_and_unknown_ones_come_last() -> None:
    lines = rendered(
        *(a_result(target=name) for name in ("zeta", "alpha", "second", "first")),
        targets=(("first", "1"), ("second", "2")),
    )
    assert lines[0].split() == ["first", "1", "second", "2", "alpha", "zeta"]


def test_every_verdict_has_its_word_in_a_cell_and_in_the_closing_line() -> None:
    lines = rendered(*(a_result(f"area/{verdict.name}", verdict=verdict) for verdict in Verdict))
    assert lines[2] == "area  1 ok, 1 FAILED, 1 deviates, 1 UNEXPECTED PASS, 1 n/a, 1 BROKEN"
    assert lines[-1] == ("6 results: 1 passed, 1 failed, 1 deviates, 1 unexpected pass, 1 not applicable, 1 broken")


def test_attention_names_the_case_its_rows_and_the_first_line_of_why() -> None:
    lines = rendered(
        a_result("a/fails[smg]", verdict=Verdict.FAILED, problem="the problem\nand more"),
        a_result("a/breaks[smg]", verdict=Verdict.BROKEN, reason="ValueError: oops", problem="other"),
        a_result("a/known[smg]", verdict=Verdict.DEVIATES, reason="SMG-GEN-016: differs", problem="other"),
        a_result("a/better[smg]", verdict=Verdict.UNEXPECTED_PASS, reason="SMG-GEN-016: differs"),
    )
    assert lines[3:-1] == [
        "FAILED  grpcio/smg a/fails[smg] (SMG-GEN-016): the problem",
        "BROKEN  grpcio/smg a/breaks[smg] (SMG-GEN-016): ValueError: oops",
        "UNEXPECTED PASS  grpcio/smg a/better[smg] (SMG-GEN-016): SMG-GEN-016: differs",
        "deviates  grpcio/smg a/known[smg] (SMG-GEN-016): SMG-GEN-016: differs",
    ]


def test_many_failures_are_cut_and_the_rest_is_counted() -> None:
    lines = rendered(
        *(a_result(f"a/case{at}", verdict=Verdict.FAILED, problem=f"problem {at}") for at in range(MOST_NAMED + 7)),
        *(a_result(f"a/other{at}", verdict=Verdict.BROKEN, reason=f"reason {at}") for at in range(MOST_NAMED)),
    )
    assert sum(line.startswith("FAILED") for line in lines) == MOST_NAMED
    assert lines[3 + MOST_NAMED] == "  ... and 7 more failed"
    assert sum(line.startswith("BROKEN") for line in lines) == MOST_NAMED
    assert not any("more broken" in line for line in lines)


def test_what_broke_for_one_reason_is_one_line() -> None:
    gone = "TargetBroken: the command has ended"
    lines = rendered(
        *(a_result(f"a/case{at}", verdict=Verdict.BROKEN, reason=gone) for at in range(200)),
        a_result("a/other", verdict=Verdict.BROKEN, reason="ValueError: oops"),
        a_result("a/case0", "pygrpc-native", verdict=Verdict.BROKEN, reason=gone),
    )
    assert [line for line in lines if line.startswith("BROKEN")] == [
        f"BROKEN  grpcio/smg 200 cases from a/case0 on: {gone}",
        "BROKEN  grpcio/smg a/other (SMG-GEN-016): ValueError: oops",
        f"BROKEN  pygrpc-native/smg a/case0 (SMG-GEN-016): {gone}",
    ]


def test_same_failures_of_the_target_stay_apart() -> None:
    lines = rendered(*(a_result(f"a/case{at}", verdict=Verdict.FAILED, problem="the same") for at in range(3)))
    assert sum(line.startswith("FAILED") for line in lines) == 3


def test_reasons_why_not_applicable_are_told_once_with_their_count() -> None:
    missing = "x is not installed; pip install 'x' [library-missing]"
    scripted = "cannot be scripted [needs-scripted]"
    lines = rendered(
        *(a_result(f"a/case{at}", "x", verdict=Verdict.NOT_APPLICABLE, reason=missing) for at in range(120)),
        a_result("a/one", "grpcio", verdict=Verdict.NOT_APPLICABLE, reason=scripted),
        a_result("a/one", "grpcio", "openengine", verdict=Verdict.NOT_APPLICABLE, reason=scripted),
        a_result("a/two", "x", verdict=Verdict.NOT_APPLICABLE, reason=scripted),
    )
    assert [line for line in lines if line.startswith("n/a")] == [
        f"n/a  grpcio: {scripted} (2 cases)",
        f"n/a  x: {scripted} (1 case)",
        f"n/a  x: {missing} (120 cases)",
    ]


def test_notes_come_before_the_closing_line() -> None:
    lines = rendered(a_result(), notes=("one note", "another"))
    assert lines[-3:] == ["one note", "another", "1 result: 1 passed"]


def test_long_lines_are_cut_and_control_characters_do_not_pass() -> None:
    evil = "\x1b[31m" + "x" * 1000 + "\x07"
    lines = rendered(
        a_result(f"a/{'long' * 100}", verdict=Verdict.FAILED, problem=evil),
        a_result("a/b", verdict=Verdict.NOT_APPLICABLE, reason=evil),
        notes=(evil,),
    )
    assert max(map(len, lines)) <= WIDTH
    assert all(line.isprintable() for line in lines)


def test_run_without_any_case_says_so() -> None:
    assert rendered() == ["no conformance case ran"]
