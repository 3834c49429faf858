# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""mlx_config with a stand-in for mlxconfig that keeps its state in a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._mlxconfig import argument, forms, parse_query, same
from ansible_collections.ai_infra.gpu_rack.plugins.modules import mlx_config
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"

TOOL = """#!PYTHON
import json, pathlib, sys
file = pathlib.Path("STATE")
state = json.loads(file.read_text())
device = sys.argv[sys.argv.index("-d") + 1]
if device not in state:
    sys.exit(f"-E- Failed to open the device {device}")
if "set" in sys.argv:
    if state.get("locked"):
        print("Applying... Done!")
        sys.exit(0)
    for word in sys.argv[sys.argv.index("set") + 1:]:
        name, value = word.split("=")
        state[device][name][1] = {"LINK_TYPE_P1": {"1": "IB(1)", "2": "ETH(2)"}}.get(name, {}).get(value, value)
    file.write_text(json.dumps(state))
    print("Applying... Done!")
else:
    print("Configurations:          Default     Current    Next Boot")
    for name, (now, after) in state[device].items():
        print(f"        {name}      {now}   {now}   {after}")
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    file = tmp_path / "state.json"
    device = {"LINK_TYPE_P1": ["ETH(2)", "ETH(2)"], "ROCE_CC_PRIO_MASK_P1": ["255", "255"]}
    file.write_text(json.dumps({"mlx5_0": device, "mlx5_1": {**device, "LINK_TYPE_P1": ["IB(1)", "IB(1)"]}}))
    tool = tmp_path / "mlxconfig"
    tool.write_text(TOOL.replace("PYTHON", sys.executable).replace("STATE", str(file)))
    tool.chmod(0o755)
    return file


def run(state: Path, capsys: pytest.CaptureFixture[str], **extra: Any) -> dict[str, Any]:
    arguments = {
        "devices": ["mlx5_0", "mlx5_1"],
        "settings": {"LINK_TYPE_P1": "IB"},
        "tool": str(state.parent / "mlxconfig"),
        **extra,
    }
    with patch_module_args(arguments), pytest.raises(SystemExit):
        mlx_config.main()
    outcome: dict[str, Any] = json.loads(capsys.readouterr().out)
    return outcome


REASON = "mlx5_0 LINK_TYPE_P1: works with ETH(2), IB comes with the next boot"


def test_sets_what_differs_and_asks_for_a_reboot(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(state, capsys)
    assert outcome["changed"]
    assert outcome["diff"]["before"]["mlx5_0"] == {"LINK_TYPE_P1": "ETH(2)"}
    assert outcome["diff"]["after"] == {"mlx5_0": {"LINK_TYPE_P1": "IB"}, "mlx5_1": {"LINK_TYPE_P1": "IB(1)"}}
    assert (outcome["reboot_required"], outcome["reboot_reasons"]) == (True, [REASON])
    assert json.loads(state.read_text())["mlx5_0"]["LINK_TYPE_P1"] == ["ETH(2)", "IB(1)"]


def test_second_run_changes_nothing_and_still_asks(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(state, capsys)
    outcome = run(state, capsys)
    assert (outcome["changed"], outcome["reboot_reasons"]) == (False, [REASON])


def test_check_mode_sets_nothing(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = state.read_text()
    outcome = run(state, capsys, _ansible_check_mode=True)
    assert (outcome["changed"], outcome["reboot_required"]) == (True, True)
    assert state.read_text() == before


def test_not_in_effect_after_the_reboot_is_a_failure(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run(state, capsys, require_current=True)
    assert outcome["failed"]
    assert REASON in outcome["msg"]
    assert not run(state, capsys, require_current=True, devices=["mlx5_1"])["changed"]


@pytest.mark.parametrize(
    ("extra", "part"),
    [
        ({"settings": {"LINK_TYPE_P9": "IB"}}, "mlx5_0 has no parameter LINK_TYPE_P9"),
        ({"devices": ["mlx5_9"]}, "-E- Failed to open the device mlx5_9"),
        ({"tool": "/no/such/tool"}, "could not start: No such file or directory"),
    ],
)
def test_failure_names_object_and_reason(
    state: Path, capsys: pytest.CaptureFixture[str], extra: dict[str, Any], part: str
) -> None:
    assert part in run(state, capsys, **extra)["msg"]


def test_set_that_does_nothing_is_found(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state.write_text(json.dumps({**json.loads(state.read_text()), "locked": True}))
    assert "still has ETH(2)" in run(state, capsys)["msg"]


def test_query_formats() -> None:
    settings = parse_query((FIXTURES / "mft-4.33-mlxconfig-e-query.txt").read_text())
    assert (settings["LINK_TYPE_P1"].current, settings["LINK_TYPE_P1"].next_boot) == ("ETH(2)", "IB(1)")
    assert settings["ROCE_CC_PRIO_MASK_P1"].next_boot == "0"
    assert settings["HOST_CHAINING_DESCRIPTORS"].current == "Array[0..7]"
    assert len(settings) == 5
    old = parse_query((FIXTURES / "mft-4.20-mlxconfig-query.txt").read_text())
    assert (old["LINK_TYPE_P1"].current, old["LINK_TYPE_P1"].next_boot) == (None, "IB(1)")
    assert same(old["ROCE_CC_PRIO_MASK_P1"].next_boot, 255)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("IB(1)", "IB", True),
        ("IB(1)", 1, True),
        ("IB(1)", "ETH", False),
        ("True(1)", True, True),
        ("False(0)", True, False),
        ("255", "0xff", True),
        ("48", 4, False),
    ],
)
def test_values_are_compared_by_meaning(one: object, other: object, equal: bool) -> None:
    assert same(one, other) is equal


def test_arguments_are_numbers_where_the_tool_wants_them() -> None:
    assert [argument(value) for value in ("IB", "eth", True, False, 255, "BALANCED")] == [
        "1",
        "2",
        "1",
        "0",
        "255",
        "BALANCED",
    ]


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse_query(text)
    forms(text)
