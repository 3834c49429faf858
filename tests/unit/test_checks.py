# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What `gpurack gate --list-checks` shows is what the code checks: names in both directions, and sentences."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import re
from pathlib import Path

import pytest

from gpurack import cli
from gpurack.checks import checks_in, checks_of
from gpurack.errors import GpurackError

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    file for place in ("module_utils", "modules", "action") for file in (ROOT / "plugins" / place).glob("*.py")
)
NAME = re.compile(r"([a-z][a-z0-9_]*)\.([a-z][a-z0-9_]*)")
# Names of files and units that look like a check of a gate.
ENDINGS = frozenset({"json", "txt", "csv", "py", "conf", "service", "log", "yml", "html"})
# Gates that are no module of that name, and records that are shown like a gate's.
OTHERS = frozenset({"subnet_manager"})


def gates() -> set[str]:
    """Return every word that may stand before the dot of a check's name."""
    return {file.stem for file in FILES if file.parent.name == "modules"} | OTHERS


@dataclasses.dataclass(frozen=True)
class Found:
    """What one file says and does: described checks, literals with their lines, names put together at run time.

    What a function fleet... names, and the key of a dictionary, may be a value that is compared over the nodes and no
    check.
    """

    described: dict[str, str]
    used: list[tuple[str, int]]
    keys: list[str]
    odd: list[str]
    problem: str = ""


def shown(file: Path) -> str:
    return str(file.relative_to(ROOT))


def look(file: Path) -> Found:
    try:
        described = dict(checks_in(file))
    except GpurackError as exc:
        return Found({}, [], [], [], str(exc))
    tree = ast.parse(file.read_text(encoding="utf-8"))
    no_code = {id(node) for top in tree.body if is_description(top) for node in ast.walk(top)}
    no_code |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    no_check = {id(key) for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "fleet" in node.name:
            no_check |= {id(inner) for inner in ast.walk(node)}
    words = gates()
    used: list[tuple[str, int]] = []
    keys: list[str] = []
    odd: list[str] = []
    for node in ast.walk(tree):
        if id(node) in no_code:
            continue
        if isinstance(node, ast.JoinedStr):
            shape = "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
            first, dot, rest = shape.partition(".")
            if dot and ((first in words and rest == "{}") or (first == "{}" and "GATE" in ast.unparse(node))):
                odd.append(f"{shown(file)}:{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = NAME.fullmatch(node.value)
            if match and match[1] in words and id(node) in no_check:
                keys.append(node.value)
            elif match and match[1] in words:
                used.append((node.value, node.lineno))
    return Found(described, used, keys, odd)


def is_description(node: ast.stmt) -> bool:
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.target.id == "CHECKS"
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "CHECKS" for t in node.targets)


@functools.cache
def code() -> dict[Path, Found]:
    return {file: look(file) for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=shown)
def test_every_check_name_is_a_whole_literal(file: Path) -> None:
    """A name that is put together at run time cannot be found by who reads a verdict, nor listed."""
    found = code()[file]
    assert not found.problem
    assert not found.odd, "write the whole name as one literal:\n" + "\n".join(found.odd)


@pytest.mark.parametrize("file", FILES, ids=shown)
def test_every_check_is_described(file: Path) -> None:
    described = {name for found in code().values() for name in found.described}
    missing = sorted(
        f"{shown(file)}:{line}: {name}"
        for name, line in code()[file].used
        if name not in described and name.rpartition(".")[2] not in ENDINGS
    )
    assert not missing, "not described in any CHECKS:\n" + "\n".join(missing)


@pytest.mark.parametrize("file", FILES, ids=shown)
def test_every_described_check_exists_and_is_told_in_one_sentence(file: Path) -> None:
    used = {name for found in code().values() for name in (*found.keys, *(name for name, _line in found.used))}
    for name, text in code()[file].described.items():
        assert NAME.fullmatch(name), f"{shown(file)}: {name!r} is no name of a check"
        assert name in used, f"{shown(file)}: {name} is described and no code makes it"
        problem = f"{shown(file)}: {name}: {text!r} is not one sentence"
        # Names of programs and services may begin a sentence: serfHealth.
        first = text.split(" ")[0]
        assert not (first.isalpha() and first.islower()), problem
        assert text.endswith("."), problem
        assert not text.endswith(".."), problem
        assert "\n" not in text, problem
        assert len(text.split()) >= 5, problem
        assert not re.search(r"(?<!e\.g)(?<!i\.e)[.!?] [A-Z]", text), problem


def test_no_check_is_described_twice() -> None:
    assert list(checks_of(ROOT)) == sorted(name for found in code().values() for name in found.described)


def test_the_list_is_printed_for_people_and_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.main(["gate", "--list-checks"]) == 0
    text = capsys.readouterr().out
    assert "clock_sync\n  clock_sync.agreement\n      Whether chrony trusts each source;" in text
    assert cli.main(["gate", "--list-checks", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["checks"]
    assert {"check", "gate", "text"} == set(listed[0])
    assert [c["check"] for c in listed] == list(checks_of(ROOT))
    assert text.splitlines()[-1] == f"{len(listed)} checks of {len({c['gate'] for c in listed})} gates"


@pytest.mark.parametrize(
    "body",
    ["CHECKS = {**other}\n", "CHECKS = {name: 'A text.'}\n", "CHECKS: dict[str, str] = {'g.a': 1}\n", "CHECKS = f()\n"],
)
def test_a_description_that_is_no_plain_text_is_refused(body: str, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(body)
    with pytest.raises(GpurackError, match="is no dictionary of plain texts"):
        list(checks_in(tmp_path / "f.py"))


def test_a_check_described_twice_is_refused(tmp_path: Path) -> None:
    for place in ("modules", "module_utils"):
        (tmp_path / "plugins" / place).mkdir(parents=True)
        (tmp_path / "plugins" / place / "f.py").write_text("CHECKS = {'g.a': 'What it is.'}\n")
    with pytest.raises(GpurackError, match=r"check g\.a: described twice"):
        checks_of(tmp_path)
