# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of where a gate's readings come from."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, result, seal

CHECK = Check("g.fact", "node", "pass", "reason", 1)


def stored(path: Path, readings: list[Evidence], **changes: Any) -> str:
    data = seal({**result("g", [CHECK], readings), "time": 1.0})
    for reading in data["evidence"]:
        reading.update(changes)
    path.write_text(json.dumps(seal(data)))
    return str(path)


def test_a_bundle_gives_the_best_name_with_its_status_and_errors(tmp_path: Path) -> None:
    (tmp_path / "second.txt").write_text("two\n")
    source = Source(str(tmp_path), 10)
    got = source.read(["tool", "-a b"], "first.txt", "second.txt")
    assert (got.stdout, got.rc, got.command) == ("two\n", 0, f"captured {tmp_path}/second.txt")
    assert (got.stands_for, got.name, got.captured, got.needed) == ("tool '-a b'", "first.txt", "directory", True)
    (tmp_path / "first.txt.gz").write_bytes(gzip.compress(b"one\r\n"))
    (tmp_path / "first.txt.stderr").write_text("oh\n")
    (tmp_path / "first.txt.rc").write_text("3\n")
    got = source.read(["tool", "-a b"], "first.txt", "second.txt", primary=False)
    assert (got.stdout, got.stderr, got.rc, got.needed) == ("one\n", "oh\n", 3, False)
    assert refusal(got) == f"captured {tmp_path}/first.txt.gz ended with status 3: oh"


def test_a_status_alone_is_a_tool_that_printed_nothing(tmp_path: Path) -> None:
    (tmp_path / "f.rc").write_text("127")
    got = Source(str(tmp_path), 10).read(["tool"], "f")
    assert (got.stdout, got.rc, refusal(got)) == ("", 127, f"captured {tmp_path}/f ended with status 127")


@pytest.mark.parametrize("content", ["", "none", "0x1", "99999", "1 2"])
def test_a_status_that_is_none_is_unknown(tmp_path: Path, content: str) -> None:
    (tmp_path / "f").write_text("fine\n")
    (tmp_path / "f.rc").write_text(content)
    got = Source(str(tmp_path), 10).read(["tool"], "f")
    assert (got.rc, got.error) == (None, f"{tmp_path}/f.rc holds no exit status: {content!r}")


def test_a_file_that_cannot_be_read_does_not_give_way_to_the_next_name(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").write_text("fine\n")
    got = Source(str(tmp_path), 10).read(["tool"], "first", "second")
    assert (got.rc, got.error) == (None, "could not read: Is a directory")
    (tmp_path / "second.stderr").symlink_to("nowhere")
    got = Source(str(tmp_path), 10).read(["tool"], "second")
    assert got.error == "could not read: No such file or directory"


def test_one_file_is_the_primary_reading(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("text\n")
    source = Source(str(tmp_path / "f.txt"), 10)
    assert source.single_file
    assert source.read(["tool"], "x.txt").stdout == "text\n"
    assert "not in the one captured file" in (source.read(["side"], "y.txt", primary=False).error or "")
    again = Source(stored(tmp_path / "g.json", source.used), 10)
    assert again.single_file
    assert [again.read(["tool"], "x.txt"), again.read(["side"], "y.txt", primary=False)] == source.used


def test_stored_evidence_answers_each_command_again(tmp_path: Path) -> None:
    """Also when the same command was read twice for a difference, and when the evidence came from a capture."""
    (tmp_path / "before.txt").write_text("1\n")
    (tmp_path / "after.txt").write_text("2\n")
    (tmp_path / "after.txt.rc").write_text("4\n")
    first = Source(str(tmp_path), 10)

    def read(source: Source) -> list[Evidence]:
        names = ("before.txt", "after.txt", "missing.txt")
        return [source.read(["counters"], name, primary=name != "missing.txt") for name in names]

    wanted = read(first)
    assert [(e.stdout, e.rc) for e in wanted] == [("1\n", 0), ("2\n", 4), ("", None)]
    again = Source(stored(tmp_path / "one.json", first.used), 10)
    assert read(again) == wanted
    assert read(Source(stored(tmp_path / "two.json", again.used), 10)) == wanted


TWO = [Evidence("tool", 0, "one\n"), Evidence("tool", 0, "two\n")]


@pytest.mark.parametrize("order", [1, -1])
def test_two_different_readings_of_one_command_are_none(tmp_path: Path, order: int) -> None:
    got = Source(stored(tmp_path / "g.json", TWO[::order]), 10).read(["tool"], "name.txt")
    assert refusal(got) == "tool: two different readings of this command are stored"
    same = Source(stored(tmp_path / "g.json", [TWO[0], TWO[0]]), 10).read(["tool"], "name.txt")
    assert (same.stdout, refusal(same)) == ("one\n", None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"stdout": "other\n"}, "its stored output does not match its digest"),
        ({"stdout": None}, "its output is not stored here; give the file of the evidence directory"),
        ({"rc": None}, "its exit status is not stored"),
        ({"rc": False}, "its exit status is not stored"),
        ({"rc": "0"}, "its exit status is not stored"),
        ({"error": "still running"}, "still running"),
    ],
)
def test_stored_evidence_that_is_not_whole_is_unknown(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    got = Source(stored(tmp_path / "g.json", TWO[:1], **change), 10).read(["tool"])
    assert refusal(got) == f"tool: {reason}"


def test_stored_evidence_that_was_changed_anywhere_is_unknown(tmp_path: Path) -> None:
    data = seal({**result("g", [CHECK], [Evidence("tool", 3, "half")]), "time": 1.0})
    data["evidence"][0]["rc"] = 0
    (tmp_path / "g.json").write_text(json.dumps(data))
    got = Source(str(tmp_path / "g.json"), 10).read(["tool"])
    assert refusal(got) == "tool: the stored evidence does not match its own digest"


def test_evidence_of_before_readings_had_names_is_still_judged(tmp_path: Path) -> None:
    old = {"command": "tool", "rc": 0, "stdout": "one\n"}
    (tmp_path / "g.json").write_text(json.dumps({"gate": "g", "evidence": [old]}))
    assert Source(str(tmp_path / "g.json"), 10).read(["tool"], "name.txt").stdout == "one\n"
    missing = Source(str(tmp_path / "g.json"), 10).read(["other"])
    assert refusal(missing) == f"captured other: no such reading in {tmp_path}/g.json"


@pytest.mark.parametrize(
    "text",
    [
        "bash: nvidia-smi: command not found\n",
        "bash: line 1: /usr/bin/chronyc: No such file or directory\n",
        "/bin/sh: 1: ibstat: not found\n",
        "sh: 1: ibstat: Permission denied\n",
        "sudo: nvidia-smi: command not found",
        "timeout: failed to run command 'x': No such file or directory\n",
        "zsh:1: command not found: nvidia-smi\n",
    ],
)
def test_an_error_of_the_shell_in_a_capture_is_no_report(tmp_path: Path, text: str) -> None:
    (tmp_path / "f").write_text(text)
    got = Source(str(tmp_path / "f"), 10).read(["tool"])
    assert refusal(got) == f"captured {tmp_path}/f holds an error of the shell and no report: {text.strip()}"


def test_a_report_that_begins_with_a_prompt_is_a_report(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("root@node1:~# chronyc tracking\nReference ID : x\n")
    assert refusal(Source(str(tmp_path / "f"), 10).read(["tool"])) is None
