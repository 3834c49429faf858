# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The text that ends a run."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.plugin_utils._summary import headline, out, reason_lines, render

NEXT = "ansible-playbook -i inventories/sim site.yml --limit node1"


def check(
    name: str, value: Any, limit: Any, unit: str = "", verdict: str = "pass", subject: str = "x"
) -> dict[str, Any]:
    return {"check": name, "subject": subject, "verdict": verdict, "value": value, "limit": limit, "unit": unit}


def test_the_value_nearest_to_its_own_limit_stands_for_the_gate() -> None:
    # Values of a real sweep: 1.66 of 2.15 us is nearer than 1.79 of 4.2 us.
    checks = [
        check("ib_latency.coverage", "24 of 24 pairs", "24 pairs"),
        check("ib_latency.latency", 1.64, 2.15, "us"),
        check("ib_latency.latency", 1.66, 2.15, "us"),
        check("ib_latency.p99", 1.79, 4.2, "us"),
        check("ib_latency.loss", 0.0, 0.0, "%"),
    ]
    assert headline(checks) == ["ib_latency.latency 1.66 us (limit 2.15)"]


RATE = check("ib_port.rate", 400, 400, "Gb/s")
FAILED = check("x.b", "NV17", "NV18", verdict="fail", subject="GPU0-GPU2")


@pytest.mark.parametrize(
    ("checks", "text"),
    [
        ([RATE, check("ib_port.state", "Active", "Active")], "ib_port.rate 400 Gb/s (limit 400)"),
        # A floor: 370 of at least 360 is nearer than 480 of at least 360.
        ([check("nccl.bw", 480.0, 360, "GB/s"), check("nccl.bw", 370.0, 360, "GB/s")], "nccl.bw 370 GB/s (limit 360)"),
        # An offset may be negative.
        ([check("clock.off", -4.2, 5.0, "ms"), check("clock.off", 0.1, 5.0, "ms")], "clock.off -4.2 ms (limit 5)"),
        ([check("x.a", True, True), check("x.b", "yes", "yes")], "x 2 ok"),
        ([check("x.a", "Normal", "Normal")], "x Normal"),
        ([check("x.loss", 0, 0, "%")], "x.loss 0 % (limit 0)"),
        ([check("x.a", 9, 8, verdict="unknown"), FAILED], "x.b GPU0-GPU2 fail: NV17 (limit NV18) (+1 more)"),
        ([check("x.a", 3, 5, "us", "warn"), check("x.b", 4, 5)], "x.a x warn: 3 us (limit 5)"),
        ([check("x.a", None, 5, "us", "unknown")], "x.a x unknown: nothing read (limit 5)"),
    ],
)
def test_headlines(checks: list[dict[str, Any]], text: str) -> None:
    assert headline(checks) == [text]


def test_a_failed_gate_says_its_worst_check() -> None:
    bad = {
        **check("ib_port.state", None, "Active", verdict="unknown"),
        "reason": "no output",
        "limit_source": "",
        "remedy": "",
    }
    worse = {
        **check("ib_port.rate", 200, 400, "Gb/s", "fail", "mlx5_1"),
        "reason": "rate of the link",
        "limit_source": "board profile hgx_h100_8",
        "remedy": "Reseat the cable.",
    }
    why = out("failed", "Hardware gate", "Decide", {"verdict": "fail", "checks": [bad, worse], "msg": "long"}, NEXT)
    assert reason_lines(why) == [
        "step   Hardware gate",
        "check  ib_port.rate mlx5_1",
        "value  200 Gb/s",
        "limit  400 Gb/s (board profile hgx_h100_8)",
        "reason rate of the link",
        "remedy Reseat the cable.",
        f"next   {NEXT}",
    ]


def test_a_task_that_is_no_check_is_shown_by_its_name() -> None:
    why = out("failed", "BIOS, kernel and firmware", "Set the BIOS", {"msg": "BMC 10.0.0.1: no answer.\nTry it."}, NEXT)
    assert reason_lines(why) == [
        "step   BIOS, kernel and firmware",
        "check  Set the BIOS",
        "value  none, the task itself failed",
        "limit  none",
        "reason BMC 10.0.0.1: no answer.",
        "       Try it.",
        f"next   {NEXT}",
    ]


def test_a_quarantine_without_a_check_names_the_task() -> None:
    record = {"stage": "base", "task": "Install the driver", "check": None, "value": None, "reason": "apt: no network"}
    why = out("failed", "Driver", "Take the node out", {"quarantine": record, "msg": "…"}, NEXT)
    assert (why["kind"], why["check"], why["stage"]) == ("quarantined", "Install the driver", "base")
    assert "check  Install the driver" in reason_lines(why)
    assert not any("None" in line for line in reason_lines(why))


def test_a_quarantine_keeps_the_lines_of_the_reason() -> None:
    before = out("failed", "Base", "Install", {"msg": "apt failed:\n  no network\n  no mirror"}, NEXT)
    record = {"stage": "base", "task": "Install", "check": None, "reason": "Install: apt failed: no network no mirror"}
    why = out("failed", "Base", "Take the node out", {"quarantine": record}, NEXT, before)
    assert reason_lines(why)[4:7] == ["reason apt failed:", "         no network", "         no mirror"]


def test_what_no_log_hides_stays_hidden() -> None:
    why = out("failed", "Join", "Write the token", {"censored": "hidden due to no_log"}, NEXT)
    assert why["reason"] == "its output is withheld because it may hold a secret"


def test_the_failed_item_of_a_loop_gives_the_reason() -> None:
    result = {"msg": "One or more items failed", "results": [{"msg": "ok"}, {"failed": True, "msg": "disk full"}]}
    assert out("failed", "s", "t", result, NEXT)["reason"] == "disk full"


def summary(**node: Any) -> dict[str, Any]:
    known = {"changed": 0, "gates": {}, "units": {}, "out": None, **node}
    steps = {"Hardware gate": 19.2}
    return {"playbook": "site.yml", "seconds": 69.4, "refused": [], "steps": steps, "nodes": {"node1": known}}


def test_a_serving_node() -> None:
    gates = {"serving": {"verdict": "pass", "headline": ["token_probe.token 0.011 s (limit 5)"]}}
    assert render(summary(units={"node1-iu0": "passing"}, gates=gates)) == [
        "",
        "RACK SUMMARY  site.yml  69 s",
        "  node1  SERVING      changed=0  node1-iu0=passing",
        "           serving gate pass: token_probe.token 0.011 s (limit 5)",
        "  time: Hardware gate 19 s",
    ]


def test_a_unit_that_does_not_pass_is_not_serving() -> None:
    lines = render(summary(units={"node1-iu0": "passing", "node1-iu1": "critical"}))
    assert lines[2].split() == ["node1", "NOT", "SERVING", "changed=0", "node1-iu0=passing", "node1-iu1=critical"]


def test_check_mode_is_said() -> None:
    assert render({**summary(), "check": True})[1].endswith("(check mode: nothing was changed)")


def test_a_refused_inventory() -> None:
    assert render({"refused": ["a.yml:3: node1: x: 'y'. Allowed: z."]}) == [
        "",
        "INVENTORY REFUSED, nothing was touched. Wrong values: 1",
        "  a.yml:3: node1: x: 'y'. Allowed: z.",
    ]


def test_no_line_is_too_long_and_a_long_command_stays_one() -> None:
    why = {
        "kind": "quarantined",
        "stage": "hardware",
        "check": "x.y",
        "reason": "word " * 200,
        "remedy": "again " * 90,
        "next_command": "ansible-playbook " + " ".join(f"-i inventories/a-long-name-of-a-site-{n}" for n in range(9)),
    }
    gates = {"hardware": {"verdict": "pass", "headline": [f"gate_number_{n}.fact {n} us (limit 9)" for n in range(30)]}}
    lines = render(summary(out=why, gates=gates))
    assert max(map(len, lines)) <= 160
    assert "\u00a0" not in "".join(lines)
    # A measured value stays with its limit.
    assert sum(line.count("us (limit 9)") for line in lines) == 30
    start = next(i for i, line in enumerate(lines) if line.strip().startswith("next "))
    end = next(i for i in range(start, len(lines)) if not lines[i].endswith("\\"))
    command = " ".join(line.removesuffix("\\").strip() for line in lines[start : end + 1])
    assert command == f"next   {why['next_command']}"


def test_the_hosts_that_are_out_are_counted() -> None:
    why = {"kind": "unreachable", "stage": "Base", "check": "ssh", "reason": "timed out", "next_command": NEXT}
    assert render(summary(out=why))[-1] == "  1 of 1 hosts did not make it: node1"
