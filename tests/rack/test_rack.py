"""The life of a rack from bare to serving, told in order: each test goes on where the one before left the rack.

Run with `make rack-test`. GPU_RACK_KEEP=1 takes the rack as it is and leaves it up, to work on one test.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import describe

from tests.rack.live import NODES, ROOT, Rack, Run, units

HEALTHY = ("node1", "node2", "node3")


def quarantined(run: Run, node: str, check: str, value: Any, limit: Any) -> None:
    """Assert that a node is out for one reason, with what a person needs to act on."""
    why = run.out(node)
    assert why["kind"] == "quarantined"
    assert (why["check"], why["value"], why["limit"]) == (check, value, limit), why
    assert why["reason"]
    assert f"--limit {node}" in why["next_command"]
    # The same lines are what a person reads at the end of the run.
    text = run.output[run.output.index("RACK SUMMARY") :]
    assert check in text
    assert why["next_command"] in text


def test_a_controller_killed_in_the_reboot_window_does_no_harm(rack: Rack) -> None:
    output = rack.kill_at("Power-cycle the node] *")
    assert "PLAY RECAP" not in output


def test_the_rack_comes_up_and_the_node_whose_bmc_ignores_writes_is_quarantined(rack: Rack) -> None:
    run = rack.play()
    assert run.rc == 2, run.output[-3000:]
    why = run.out("node4")
    assert (why["kind"], why["stage"], why["check"]) == ("quarantined", "firmware", "redfish_bios.setting")
    assert "desired" in why["reason"]
    assert "pending" in why["reason"]
    assert "current" in why["reason"]
    for node in HEALTHY:
        assert run.summary["nodes"][node]["out"] is None, run.out(node)
        assert {g["verdict"] for g in run.summary["nodes"][node]["gates"].values()} == {"pass"}
    assert rack.passing() == units(*HEALTHY)


def test_no_node_was_power_cycled_more_than_twice(rack: Rack) -> None:
    assert {node: rack.power_cycles(node) <= 2 for node in NODES} == dict.fromkeys(NODES, True)


def test_the_healed_node_joins_and_only_it_is_touched(rack: Rack) -> None:
    rack.simulator("heal", "node4")
    others = ("head1", *HEALTHY)
    logins = {host: rack.ssh(host, "journalctl -u ssh --no-pager | grep -c 'Accepted publickey'") for host in others}
    run = rack.play("--limit", "node4")
    assert run.rc == 0, run.output[-3000:]
    assert rack.passing() == units(*NODES)
    for host in others:
        # One login more: the one that counts.
        seen = rack.ssh(host, "journalctl -u ssh --no-pager | grep -c 'Accepted publickey'")
        assert int(seen) == int(logins[host]) + 1, host


def test_a_second_run_changes_nothing(rack: Rack) -> None:
    run = rack.play()
    assert run.rc == 0, run.output[-3000:]
    assert run.changed() == dict.fromkeys(("head1", *NODES), 0)


def test_check_and_diff_show_drift_made_by_hand_and_change_nothing(rack: Rack) -> None:
    cycles = rack.power_cycles("node1")
    # In the word of the node's vendor: what a technician at the BIOS setup would have left behind.
    attributes, settings = rack.bios("node1")
    assert attributes["ProcCStates"] == "Disabled"
    later = {"@odata.type": "#Settings.v1_3_0.PreferredApplyTime", "ApplyTime": "OnReset"}
    rack.bmc("node1", settings, {"Attributes": {"ProcCStates": "Enabled"}, "@Redfish.SettingsApplyTime": later})
    rack.ssh("node2", "sed -i 's/^NCCL_IB_HCA=.*/NCCL_IB_HCA=mlx5/' /etc/nccl.conf")
    rack.ssh("node3", "echo 'server 192.0.2.1' >> /etc/chrony/chrony.conf; systemctl disable --quiet chrony")
    before = {n: rack.ssh(n, "find /etc -xdev -type f -exec sha256sum {} + | sort | sha256sum") for n in NODES}
    run = rack.play("--check", "--diff")
    assert before == {n: rack.ssh(n, "find /etc -xdev -type f -exec sha256sum {} + | sort | sha256sum") for n in NODES}
    assert "-NCCL_IB_HCA=mlx5\n" in run.output
    assert "-server 192.0.2.1" in run.output
    assert "ProcCStates" in run.output
    changed = run.changed()
    assert {host for host, n in changed.items() if n} == {"node1", "node2", "node3"}
    assert rack.power_cycles("node1") == cycles
    assert rack.passing() == units(*NODES)
    run = rack.play()
    assert run.rc == 0, run.output[-3000:]
    assert rack.bios("node1")[0]["ProcCStates"] == "Disabled"
    assert rack.ssh("node3", "systemctl is-enabled chrony").strip() == "enabled"
    assert rack.passing() == units(*NODES)


@pytest.mark.parametrize(
    "faults",
    [
        {
            "node1": ("link 0-2: NV17", "nvlink_topology.matrix", "NV17", "NV18"),
            "node2": ("port mlx5_1: Polling", "ib_port.physical_state", "Polling", "LinkUp"),
            "node3": ("clock: unsynchronised", "clock_sync.leap", "Not synchronised", "Normal"),
        },
        {
            "node2": ("fabricmanager: version 580.82.07", "gpu_driver.fabric_manager", "580.82.07", "580.95.05"),
            "node3": ("engine: never answers", "token_probe.token", None, 5.0),
        },
    ],
    ids=["hardware", "software"],
)
def test_faulty_nodes_are_quarantined_with_their_reason_while_the_others_serve(
    rack: Rack, faults: dict[str, tuple[str, str, Any, Any]]
) -> None:
    for node, (fault, *_expected) in faults.items():
        rack.simulator("fault", node, fault)
    run = rack.play()
    assert run.rc == 2
    for node, (_fault, check, value, limit) in faults.items():
        quarantined(run, node, check, value, limit)
    good = [node for node in NODES if node not in faults]
    assert rack.passing() == units(*good)
    assert {node: run.summary["nodes"][node]["out"] for node in good} == dict.fromkeys(good)
    for node in faults:
        rack.simulator("heal", node)
    # Healing alone lets nobody in: only gates that pass do.
    assert rack.passing() == units(*good)
    run = rack.play()
    assert run.rc == 0, run.output[-3000:]
    assert rack.passing() == units(*NODES)


# Names of lines of bench/fault_matrix.yml, so that one table says, live as well, which check must catch what.
LIVE_FAULTS: dict[str, dict[str, tuple[str, ...]]] = {
    "first": {
        "node1": ("NV17 on one link", "ECC uncorrected", "MIG on", "wrong time servers"),
        "node2": ("PCIe x8", "C-state C6 enabled on one CPU", "symbol errors"),
        "node3": ("row remapping failed", "XID 79", "CRC errors on one link"),
        "node4": ("NCCL at 60 %", "HW slowdown", "1 of 18 links down"),
    },
    "second": {
        "node1": ("unit unbound",),
        "node2": ("latency +1 us on one cable", "recovery action reboot", "PCIe generation 4", "link downed 3 times"),
        "node3": ("rate 200", "VBIOS differs from the other GPUs", "XID 48"),
        "node4": ("port Initializing", "fabric in progress on one GPU", "persistence off"),
    },
}


def blocking(node: str) -> list[dict[str, Any]]:
    """Return the checks that keep a node out, of all stages of the last run."""
    last = max(run for run in (ROOT / ".gpu_rack/runs").iterdir() if (run / node).is_dir())
    decisions = [json.loads(file.read_text()) for file in sorted((last / node).glob("*.json"))]
    return [c for decision in decisions for c in decision["checks"] if c["verdict"] in ("fail", "unknown")]


@pytest.mark.parametrize("faults", LIVE_FAULTS.values(), ids=list(LIVE_FAULTS))
def test_each_fault_is_caught_by_its_check_and_leaves_nothing_behind(
    rack: Rack, faults: dict[str, tuple[str, ...]]
) -> None:
    table = {line["name"]: line for line in yaml.safe_load((ROOT / "bench/fault_matrix.yml").read_text())["faults"]}
    for node, names in faults.items():
        for name in names:
            rack.simulator("fault", node, table[name]["fault"])
        # NCCL leaves GPUs alone that an engine uses; how a unit is bound is decided at its start.
        rack.ssh(node, f"systemctl {'restart' if 'unit unbound' in names else 'stop'} 'vllm@*'")
    run = rack.play("-e", "node_gate_port_wait=2", playbook="playbooks/gate.yml")
    assert run.rc == 2, run.output[-3000:]
    for node, names in faults.items():
        found = blocking(node)
        for name in names:
            # The table is written for node1.
            subject = str(table[name].get("subject", ".*")).replace("node1", node)
            words = [str(word).replace("node1", node).lower() for word in table[name]["says"]]
            caught = [c for c in found if c["check"] == table[name]["check"] and re.fullmatch(subject, c["subject"])]
            shown = [describe(check) for check in caught]
            assert any(all(word in text.lower() for word in words) for text in shown), (
                node,
                name,
                shown or [describe(check) for check in found],
            )
        assert run.out(node)["kind"] == "quarantined"
    assert rack.passing() == set()
    for node in faults:
        rack.simulator("heal", node)
    run = rack.play()
    assert run.rc == 0, run.output[-3000:]
    assert rack.passing() == units(*NODES)


def test_a_controller_killed_while_engines_start_leaves_a_rack_that_the_next_run_completes(rack: Rack) -> None:
    rack.ssh("node1", "systemctl stop 'vllm@*' && rm /etc/systemd/system/vllm@.service && systemctl daemon-reload")
    rack.kill_at("ai_infra.gpu_rack.vllm_iu : ", "--limit", "node1")
    run = rack.play()
    assert run.rc == 0, run.output[-3000:]
    assert rack.passing() == units(*NODES)
    assert rack.play().changed() == dict.fromkeys(("head1", *NODES), 0)


def test_a_dead_node_is_critical_within_15_seconds(rack: Rack) -> None:
    rack.simulator("exec", "head1", "true")
    start = time.monotonic()
    rack.power_off("node4")
    while rack.passing() & units("node4"):
        assert time.monotonic() - start < 15, "node4 still takes traffic"
        time.sleep(0.2)
    serf = {c["Node"]: c["Status"] for c in rack.consul("health/state/any") if c["CheckID"] == "serfHealth"}
    assert serf["node4"] == "critical"
    assert rack.passing() == units(*HEALTHY)


def test_the_report_of_the_last_run_tells_a_dead_node_from_good_ones(rack: Rack) -> None:
    run = rack.play(playbook="playbooks/report.yml")
    reports = sorted((ROOT / ".gpu_rack/runs").glob("*/report.json"))
    report = json.loads(reports[-1].read_text())
    assert {node["name"]: node["state"] for node in report["nodes"]} == {
        **dict.fromkeys(HEALTHY, "pass"),
        "node4": "unreachable",
    }, run.output[-3000:]
    assert report["topology"]
    page = reports[-1].with_name("report.html").read_text()
    assert "NV18" in page
    assert 'src="http' not in page


def leaks(rack: Rack, host: str, secrets: dict[str, str]) -> list[str]:
    """Return what shows a secret on a host: files others can read, evidence of any mode, lines of the process list."""
    found = rack.ssh(
        host,
        # Over stdin into a file of root's own: the command line of this very check is in the process list, too.
        "umask 077; cat > /root/patterns;"
        "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -F -f /root/patterns;"
        "find /etc /usr/local /var /opt /srv /run -xdev -type f -perm -o=r -size -1024k"
        " -exec grep -lF -f /root/patterns {} + ; grep -rlF -f /root/patterns /var/lib/gpu_rack; rm /root/patterns",
        stdin="".join(f"{secret}\n" for secret in secrets.values()),
    )
    return found.splitlines()


def test_no_secret_is_in_any_output_evidence_process_list_or_readable_file(rack: Rack) -> None:
    secrets = {p.name: rack.secret(p.name) for p in (rack.state / "secrets").iterdir()}
    assert set(secrets) >= {"bmc_password", "consul_gossip_key", "consul_management_token", "consul_service_token"}
    files = [*rack.logs.iterdir(), *(p for p in (ROOT / ".gpu_rack").rglob("*") if p.is_file())]
    assert files
    for file in files:
        text = Path(file).read_bytes().decode("utf-8", "replace")
        assert [n for n, s in secrets.items() if s in text] == [], file
    # A search that finds nothing proves something only if it would have found one.
    rack.ssh("node1", "cat > /opt/planted; chmod 644 /opt/planted", stdin=secrets["bmc_password"])
    assert leaks(rack, "node1", secrets) == ["/opt/planted"]
    rack.ssh("node1", "rm /opt/planted")
    for host in ("head1", *HEALTHY):
        assert leaks(rack, host, secrets) == [], host
