# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the one place that runs tools: nothing a tool does may hang a gate, fill the memory or the disk."""

from __future__ import annotations

import gzip
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cli
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source


@pytest.fixture
def left_behind(tmp_path: Path) -> Iterator[Path]:
    """Return a file in which a tool writes the process ids that outlive it; they are ended afterwards."""
    file = tmp_path / "pids"
    yield file
    for pid in file.read_text().split() if file.exists() else ():
        os.kill(int(pid), signal.SIGKILL)


def timed(argv: list[str], timeout: float) -> tuple[_cli.Evidence, float]:
    start = time.monotonic()
    got = _cli.run(argv, timeout)
    return got, time.monotonic() - start


def test_what_a_tool_prints_is_kept_whole() -> None:
    got = _cli.run([sys.executable, "-c", "import sys; print('o' * 300000); print('e' * 300000, file=sys.stderr)"], 30)
    assert (got.rc, got.error, len(got.stdout), len(got.stderr)) == (0, None, 300001, 300001)
    assert _cli.run(["sh", "-c", "echo out; echo err >&2; exit 7"], 10).rc == 7
    assert _cli.run(["cat"], 10, stdin="x" * 300000).stdout == "x" * 300000
    assert _cli.run(["sh", "-c", "kill -9 $$"], 10).rc == -9


STUCK = {
    "sleeps": "sleep 60",
    "ignores SIGTERM": "trap '' TERM INT HUP; while :; do sleep 1; done",
    "stops itself": "kill -STOP $$",
    "closed its outputs": "exec >&- 2>&-; sleep 60",
    "reads what never comes": "sleep 60 | cat",
    "a child in its group": "sleep 60 & wait",
}


@pytest.mark.parametrize("body", STUCK.values(), ids=STUCK.keys())
def test_a_tool_that_does_not_end_is_killed_with_its_group(body: str) -> None:
    got, seconds = timed(["sh", "-c", f"echo before; {body}"], 0.8)
    assert (got.rc, got.error, got.stdout) == (None, "still running after 0.8 s, killed", "before\n")
    assert seconds < 30


def test_a_process_that_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in D state takes no signal: as if the kill had not been sent."""
    groups: list[int] = []
    kill = os.killpg
    monkeypatch.setattr(os, "killpg", lambda group, _signal: groups.append(group))
    got, seconds = timed(["sleep", "60"], 0.3)
    assert got.error == "still running after 0.3 s, killed"
    assert 2.0 <= seconds < 30
    kill(groups[0], signal.SIGKILL)


def test_a_tool_of_another_user_that_may_not_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = os.killpg

    def refuse(group: int, number: int) -> None:
        kill(group, number)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", refuse)
    assert timed(["sleep", "60"], 0.2)[0].error == "still running after 0.2 s, killed"


def test_a_grandchild_that_keeps_the_pipes_does_not_delay(left_behind: Path) -> None:
    body = (
        f"setsid sh -c 'echo $$ > {left_behind}; exec sleep 60' & while [ ! -s {left_behind} ]; do :; done; echo done"
    )
    got, seconds = timed(["sh", "-c", body], 50)
    assert (got.rc, got.error, got.stdout) == (0, None, "done\n")
    assert seconds < 30


def test_a_grandchild_that_floods_the_pipes_does_not_delay(left_behind: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cli, "MAX_OUTPUT_BYTES", 1 << 20)
    body = f"setsid sh -c 'echo $$ > {left_behind}; exec yes' & while [ ! -s {left_behind} ]; do :; done"
    _got, seconds = timed(["sh", "-c", body], 50)
    assert seconds < 30
    # It lost its reader, so it is gone: nothing is written to anywhere.
    pid = int(left_behind.read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    left_behind.unlink()


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_flood_is_cut_and_never_reaches_the_disk(
    stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cli, "MAX_OUTPUT_BYTES", 2 << 20)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    got, seconds = timed(["sh", "-c", f"yes >&{stream}"], 60)
    assert (got.rc, got.error) == (None, "printed more than 2 MiB, killed")
    # Its beginning is kept: evidence of it must not fill the disk either.
    assert (len(got.stdout) + len(got.stderr), (got.stdout or got.stderr)[:4]) == (1 << 20, "y\ny\n")
    assert seconds < 40
    assert list(tmp_path.iterdir()) == []


def test_the_limit_is_large_enough_for_every_real_report() -> None:
    assert _cli.MAX_OUTPUT_BYTES == 64 * 1024 * 1024


@pytest.mark.parametrize("argv", [["no-such-tool-here"], ["/"], ["echo", "a\0b"]])
def test_a_tool_that_cannot_start_says_why(argv: list[str]) -> None:
    got = _cli.run(argv, 5)
    assert got.rc is None
    assert (got.error or "").startswith("could not start: ")


def test_all_commands_of_a_gate_together_have_a_deadline() -> None:
    source = Source(None, 0.3)
    start = time.monotonic()
    readings = [source.read(["sleep", "60"], primary=False) for _unused in range(12)]
    assert time.monotonic() - start < 30
    errors = [r.error or "" for r in readings]
    assert errors[0] == "still running after 0.3 s, killed"
    assert errors[-1] == "not started: the commands of this gate have used 0.9 s, 3 times the deadline of one"
    assert sum(e.startswith("not started") for e in errors) >= 8


CAPTURES = {
    "plain": "a\nµ\n".encode(),
    "CR LF": "a\r\nµ\r\n".encode(),
    "CR CR LF of a terminal": "a\r\r\nµ\r\r\n".encode(),
    "UTF-8 with a mark": "a\nµ\n".encode("utf-8-sig"),
    "UTF-16 LE": b"\xff\xfe" + "a\r\nµ\r\n".encode("utf-16-le"),
    "UTF-16 BE": b"\xfe\xff" + "a\nµ\n".encode("utf-16-be"),
    "gzip": gzip.compress("a\nµ\n".encode()),
    "gzip of CR LF": gzip.compress("a\r\nµ\r\n".encode("utf-8-sig")),
}


@pytest.mark.parametrize("content", CAPTURES.values(), ids=CAPTURES.keys())
def test_a_capture_reads_alike_from_every_machine(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    got = _cli.read_captured(str(tmp_path / "f"))
    assert (got.rc, got.stdout, got.error) == (0, "a\nµ\n", None)


def test_files_of_the_kernel_that_refuse_a_large_read_are_read() -> None:
    me = _cli.identity()
    assert re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", str(me["boot_id"]))


def test_bytes_that_are_no_text_do_not_raise(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xff\xfe\x00\xd8\x01")
    assert _cli.read_captured(str(tmp_path / "f")).error is None


def test_captures_that_cannot_be_read_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cli, "MAX_OUTPUT_BYTES", 1 << 20)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "large").write_bytes(b"x" * ((1 << 20) + 1))
    (tmp_path / "bomb").write_bytes(gzip.compress(b"x" * (1 << 22)))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(os.urandom(4000))[:2000])
    (tmp_path / "bad.gz").write_bytes(b"\x1f\x8b nothing of the kind")
    (tmp_path / "fits").write_bytes(b"x" * (1 << 20))
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    assert _cli.read_captured(str(tmp_path / "fits")).error is None
    for name, reason in {
        "fifo": "it is not a file",
        "link": "No such file or directory",
        "large": "it is larger than 1 MiB",
        "bomb": "it is larger than 1 MiB",
        "cut.gz": "ended before the end-of-stream marker",
        "bad.gz": "",
        ".": "Is a directory",
        "a\0b": "embedded null byte",
        **({} if os.geteuid() == 0 else {"secret": "Permission denied"}),
    }.items():
        got = _cli.read_captured(str(tmp_path / name))
        assert (got.rc, got.stdout) == (None, ""), name
        assert (got.error or "").startswith("could not read: "), name
        assert reason in (got.error or ""), name


def test_a_file_of_carriage_returns_is_read_in_no_time(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\r" * 300_000 + b"x")
    began = time.process_time()
    assert _cli.read_captured(str(tmp_path / "x")).stdout == "\r" * 300_000 + "x"
    assert time.process_time() - began < 2
