"""The process that answers the goldens with the other protobuf back end."""

from __future__ import annotations

import json
import subprocess

import pytest

from pytest_grpc_conformance import golden


def test_answers_come_from_the_back_end_that_this_process_does_not_use() -> None:
    other, answers = golden.answers_in_other_backend("smg", "grpcio", None, timeout=10)
    assert {other, golden.backend()} == {"upb", "python"}
    if answers is None:
        pytest.skip(f"protobuf has no {other} back end here")
    assert list(answers) == [recipe.file for recipe in golden.recipes("smg")]
    assert {answer.status for answer in answers.values()} == {"OK"}


def test_back_end_that_cannot_be_had_gives_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where protobuf lacks the back end that it was told to use, it uses the one that it has.
    told = json.dumps({"backend": golden.backend(), "answers": {}})
    done = subprocess.CompletedProcess([], 0, stdout=told, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert golden.answers_in_other_backend("smg", "grpcio", None, timeout=10)[1] is None


def test_process_that_fails_is_no_answer() -> None:
    with pytest.raises(golden.OtherBackend, match=r"(?s)exit code 1.*nonsense"):
        golden.answers_in_other_backend("smg", "nonsense", None, timeout=10)


def test_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "START_SECONDS", 0.05)
    with pytest.raises(golden.OtherBackend, match="did not end within"):
        golden.answers_in_other_backend("smg", "grpcio", None, timeout=0.05)
