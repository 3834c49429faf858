# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ibping and perftest between simulated nodes.

Who can talk to whom is real: the two ends meet over TCP (perftest's own out-of-band connection, and a port per
HCA for ibping), so a dead peer, a missing server or a cut network fails as on metal. Only the numbers are made:
microseconds from the number of switches between the leaves and the faults of both ends.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from simhw import hw as store
from simhw.hw import Hw

IBPING_PORT = 18700  # + rail of the HCA
_LINE = "-" * 87


def _hca(hw: Hw, name: str) -> Hw | None:
    for h in hw["hcas"]:
        if h["name"] == name and h.get("state") != "missing":
            return dict(h)
    return None


def port_state(hw: Hw, h: Hw) -> tuple[str, str]:
    """Logical and physical state: faults first, then what the fabric itself says (OpenSM must have run)."""
    port = h["port"]
    if port["state"] != "Active" or h["link_layer"] != "infiniband":
        return str(port["state"]), str(port["phys"])
    if os.environ.get("SIMHW_ROOT"):
        return str(port["state"]), str(port["phys"])
    try:
        done = subprocess.run(["ibstat", h["name"], "1"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return str(port["state"]), str(port["phys"])
    lines = (x.partition(":") for x in done.stdout.splitlines())
    values = {key.strip(): value.strip() for key, colon, value in lines if colon}
    return values.get("State", str(port["state"])), values.get("Physical state", str(port["phys"]))


def lid_of(hw: Hw, h: Hw) -> int:
    """LID for display: the fabric's where it can be asked cheaply, else one derived from the place in the rack."""
    peers = list(hw.get("ib", {}).get("peers", {}))
    peer = hw.get("ib", {}).get("peers", {}).get(h["guid"], {})
    return int(peer.get("lid") or (peers.index(h["guid"]) + 2 if h["guid"] in peers else 1))


# --- ibping


def _ibping_usage() -> int:
    print("\nUsage: ibping [options] <dest lid|guid>\n", file=sys.stderr)
    return 255


def ibping(argv: list[str]) -> int:
    ca, server, count, flood, by_guid, timeout = "", False, 0, False, False, 1.0
    target = ""
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-S", "--Server"):
            server = True
        elif word in ("-f", "--flood"):
            flood = True
        elif word in ("-G", "--Guid"):
            by_guid = True
        elif word in ("-L", "--Lid"):
            by_guid = False
        elif word in ("-v", "--verbose", "-d", "--debug", "-e", "--errors"):
            pass
        elif word in (
            "-c",
            "--count",
            "-C",
            "--Ca",
            "-P",
            "--Port",
            "-t",
            "--timeout",
            "-o",
            "--oui",
            "-s",
            "--sm_port",
        ):
            if not rest:
                return _ibping_usage()
            value = rest.pop(0)
            if word in ("-c", "--count"):
                count = int(value)
            elif word in ("-C", "--Ca"):
                ca = value
            elif word in ("-t", "--timeout"):
                timeout = int(value) / 1000
        elif word in ("-V", "--version"):
            print("ibping BUILD VERSION: 44.0 Build date: Jan 11 2023 07:00:00", file=sys.stderr)
            return 255
        elif word.startswith("-") and len(word) > 2 and word[1] != "-":
            rest[:0] = ["-" + letter for letter in word[1:]]
        elif word.startswith("-"):
            return _ibping_usage()
        else:
            target = word
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with SIGINT ignored
    hw = store.effective()
    h = _hca(hw, ca) if ca else next((dict(x) for x in hw["hcas"] if x.get("state") != "missing"), None)
    if h is None:
        print(
            f"ibwarn: [{os.getpid()}] mad_rpc_open_port: can't open UMAD port ({ca}:0)\n"
            f"{sys.argv[0]}: iberror: failed: Failed to open '{ca}' port '0'",
            file=sys.stderr,
        )
        return 255
    if server:
        try:
            return _ibping_server(h)
        except KeyboardInterrupt:
            return 0
    if not target:
        return _ibping_usage()
    return _ibping_client(hw, h, target, by_guid, count, flood, timeout)


def _ibping_server(h: Hw) -> int:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("0.0.0.0", IBPING_PORT + int(h["rail"])))
    except OSError:
        print(
            f"ibwarn: [{os.getpid()}] mad_register_server: Failed to register class 0x32\n"
            "ibping: iberror: failed: can't serve class 50 on this port",
            file=sys.stderr,
        )
        return 255
    listener.listen(64)
    clients: list[socket.socket] = []
    now: Hw | None = h
    looked = time.monotonic()
    name = f"{socket.gethostname()}.(none)"
    while True:
        ready, _writable, _failed = select.select([listener, *clients], [], [])
        for s in ready:
            if s is listener:
                client, _unused = listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients.append(client)
                continue
            try:
                data = s.recv(4096)
                if time.monotonic() - looked > 0.25:  # faults may come and go while the server runs
                    now, looked = _hca(store.effective(), h["name"]), time.monotonic()
                port = now["port"] if now else None
                # A port that is down answers nothing; the connection stays, as silence on a fabric does.
                if data and port and port["state"] == "Active":
                    answer = json.dumps({"name": name, "extra_us": port["extra_us"], "loss": port["loss"]})
                    for _n in range(data.count(b"\n")):
                        s.sendall(answer.encode() + b"\n")
            except OSError:
                data = b""
            if not data:
                clients.remove(s)
                s.close()


def _lost(name: str, share: float) -> bool:
    """Deterministic loss: the shares add up from call to call, so that 0.1 % is 1 of every 1000 packets."""
    if share <= 0:
        return False
    if share >= 1:
        return True
    _carry[name] = _carry.get(name, 0.5) + share
    if _carry[name] >= 1.0:
        _carry[name] -= 1.0
        return True
    return False


_carry: dict[str, float] = {}


def _peer(hw: Hw, target: str, by_guid: bool) -> tuple[str, Hw] | None:
    peers: Hw = hw.get("ib", {}).get("peers", {})
    try:
        number = int(target, 0)
    except ValueError:
        return None
    if by_guid:
        for guid, peer in peers.items():
            if int(guid, 16) == number:
                return guid, peer
        return None
    for guid, peer in peers.items():
        if int(peer.get("lid") or 0) == number:
            return guid, peer
    if os.environ.get("SIMHW_ROOT"):
        return None
    try:  # the fabric knows its LIDs
        done = subprocess.run(
            ["smpquery", "nodeinfo", str(number)], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    for line in done.stdout.splitlines():
        if line.startswith("PortGuid:"):
            return _peer(hw, line.rsplit(".", 1)[-1].strip(), True)
    return None


def _ibping_client(hw: Hw, h: Hw, target: str, by_guid: bool, count: int, flood: bool, timeout: float) -> int:
    state, _phys = port_state(hw, h)
    found = _peer(hw, target, by_guid)
    if by_guid and (found is None or state not in ("Active", "Armed")):
        print(
            f"ibwarn: [{os.getpid()}] ib_path_query_via: sa call path_query failed\n"
            f"ibping: iberror: failed: can't resolve destination port {target}",
            file=sys.stderr,
        )
        return 255
    guid, peer = found if found else ("", {})
    lid = int(peer.get("lid") or target if not by_guid else lid_of(hw, {"guid": guid}))
    connection: socket.socket | None = None
    if found and state in ("Active", "Armed"):
        rail = int(str(peer["hca"]).rsplit("_", 1)[-1])
        try:
            connection = socket.create_connection((peer["ip"], IBPING_PORT + rail), timeout=min(timeout, 2.0))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(timeout)
        except OSError:
            connection = None
    sent, received, name = 0, 0, ""
    rtts: list[float] = []
    started = time.monotonic()
    buffer = b""
    try:
        while not count or sent < count:
            sent += 1
            begin = time.perf_counter()
            answer = None
            silent = connection is None
            if connection is not None:
                try:
                    connection.sendall(b"p\n")
                    while b"\n" not in buffer:
                        chunk = connection.recv(4096)
                        if not chunk:
                            raise OSError("closed")
                        buffer += chunk
                    line, buffer = buffer.split(b"\n", 1)
                    answer = json.loads(line)
                except (OSError, ValueError):
                    silent = True
                    if not isinstance(sys.exc_info()[1], TimeoutError):
                        connection = None
            if answer is not None and _lost("path", 1 - (1 - float(h["port"]["loss"])) * (1 - float(answer["loss"]))):
                answer = None
            if answer is None:
                if silent and connection is None:
                    time.sleep(min(timeout, 0.05 if flood else timeout))  # nobody to wait for: time out quickly
                print(
                    f"ibwarn: [{os.getpid()}] _do_madrpc: recv failed: Connection timed out\n"
                    f"ibwarn: [{os.getpid()}] mad_rpc: _do_madrpc failed; dport (Lid {lid})",
                    file=sys.stderr,
                )
            else:
                received += 1
                name = str(answer["name"])
                # The real program prints seconds and microseconds glued together, off by 10 within a second.
                ms = random.uniform(0.018, 0.045) + (time.perf_counter() - begin) * 0.01
                ms += (float(h["port"]["extra_us"]) + float(answer["extra_us"])) * 2e-3
                rtts.append(ms)
                if not flood:
                    print(f"Pong from {name} (Lid {lid}): time {ms:.3f} ms", flush=True)
            if not flood and (not count or sent < count):
                time.sleep(max(0.0, 1.0 - (time.perf_counter() - begin)))
    except KeyboardInterrupt:
        pass
    total = int((time.monotonic() - started) * 1000)
    loss = 100 - received * 100 // sent if received else 100
    if received and received != sent:
        loss = (sent - received) * 100 // sent
    low, high, mean = (min(rtts), max(rtts), sum(rtts) / len(rtts)) if rtts else (0.0, 0.0, 0.0)
    print(
        f"\n--- {name} (Lid {lid}) ibping statistics ---\n{sent} packets transmitted, {received} received, "
        f"{loss}% packet "
        f"loss, time {total} ms\nrtt min/avg/max = {low:.3f}/{mean:.3f}/{high:.3f} ms"
    )
    return 0


# --- perftest

_TITLES = {
    "ib_write_lat": "RDMA_Write Latency Test",
    "ib_send_lat": "Send Latency Test",
    "ib_read_lat": "RDMA_Read Latency Test",
    "ib_write_bw": "RDMA_Write BW Test",
    "ib_send_bw": "Send BW Test",
    "ib_read_bw": "RDMA_Read BW Test",
}
_VALUED = {
    "-d": "--ib-dev",
    "-i": "--ib-port",
    "-p": "--port",
    "-n": "--iters",
    "-s": "--size",
    "-q": "--qp",
    "-m": "--mtu",
    "-t": "--tx-depth",
    "-r": "--rx-depth",
    "-D": "--duration",
    "-x": "--gid-index",
    "-S": "--sl",
    "-c": "--connection",
    "-u": "--qp-timeout",
    "-I": "--inline_size",
    "-f": "--margin",
    "-T": "--tos",
    "-A": "",
    "-Q": "--cq-mod",
    "-l": "--post_list",
}
_LONG_VALUED = {v for v in _VALUED.values() if v} | {
    "--out_json_file",
    "--use_cuda",
    "--bind_source_ip",
    "--limit_bw",
    "--limit_msgrate",
    "--source_ip",
}
_FLAGS = {
    "-F": "--CPU-freq",
    "-a": "--all",
    "-b": "--bidirectional",
    "-R": "--rdma_cm",
    "-H": "--report-histogram",
    "-U": "--report-unsorted",
    "-C": "--report-cycles",
    "-N": "--noPeak",
    "-e": "--events",
    "-z": "--comm_rdma_cm",
    "-O": "--dualport",
    "-V": "--version",
    "-h": "--help",
}
_LONG_FLAGS = set(_FLAGS.values()) | {
    "--report_gbits",
    "--out_json",
    "--perform_warm_up",
    "--disable_pcie_relaxed",
    "--run_infinitely",
    "--output",
    "--report-both",
    "--ipv6",
}


def _options(argv: list[str]) -> tuple[dict[str, str], str] | str:
    values: dict[str, str] = {}
    server = ""
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if name in _LONG_VALUED:
                if not equals:
                    if not rest:
                        return f"option '{name}' requires an argument"
                    value = rest.pop(0)
                values[name] = value
            elif name in _LONG_FLAGS or name.startswith("--output"):
                values[name] = value or "1"
            else:
                return f"unrecognized option '{name}'"
        elif word.startswith("-") and len(word) > 1:
            short = word[:2]
            if short in _VALUED:
                value = word[2:] or (rest.pop(0) if rest else "")
                if not value:
                    return f"option requires an argument -- '{short[1]}'"
                values[_VALUED[short] or short] = value
            elif short in _FLAGS:
                values[_FLAGS[short]] = "1"
                if len(word) > 2:
                    rest.insert(0, "-" + word[2:])
            else:
                return f"invalid option -- '{short[1]}'"
        elif not server:
            server = word
        else:
            return f" Unknown argument: {word}"
    return values, server


class Lost(Exception):
    """The other end did not do its part."""


def _send(s: socket.socket, value: Any) -> None:
    s.sendall(json.dumps(value).encode() + b"\n")


def _receive(s: socket.socket) -> Any:
    data = b""
    while not data.endswith(b"\n"):
        chunk = s.recv(65536)
        if not chunk:
            raise Lost("closed")
        data += chunk
    return json.loads(data)


def _meet(server: str, port: int, me: Hw) -> Hw:
    """perftest's out-of-band connection: the server waits for one client, both tell who they are."""
    if server:
        with socket.create_connection((server, port), timeout=10) as s:
            _send(s, me)
            peer = _receive(s)
            _send(s, "done")
            return dict(peer)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", port))
    listener.listen(1)
    s, _address = listener.accept()
    listener.close()
    with s:
        s.settimeout(30)
        peer = _receive(s)
        _send(s, me)
        _receive(s)
        return dict(peer)


def switches_between(leaf_a: str, leaf_b: str, same_port: bool) -> int:
    if same_port:
        return 0
    return 1 if leaf_a == leaf_b else 3


def one_way_us(hw: Hw, me: Hw, peer: Hw) -> float:
    """Typical one-way latency of a small write between two ports."""
    rdma = hw["rdma"]
    hops = switches_between(me["leaf"], peer["leaf"], me["guid"] == peer["guid"])
    leaves = {me["leaf"], peer["leaf"]}
    extra = float(me["extra_us"]) + float(peer["extra_us"])
    for leaf in leaves:
        extra += max(float(me["leaf_us"].get(leaf, 0.0)), float(peer["leaf_us"].get(leaf, 0.0)))
    return float(rdma.get("direct_us", 1.45)) + hops * float(rdma.get("switch_us", 0.2)) + extra


def perftest(tool: str, argv: list[str]) -> int:
    parsed = _options(argv)
    if isinstance(parsed, str):
        print(f"{tool}: {parsed}\n Parser function exited with Error", file=sys.stderr)
        return 1
    values, server = parsed
    if "--version" in values:
        print("Version: 24.10")
        return 0
    latency = tool.endswith("_lat")
    try:
        port = int(values.get("--port", "18515"))
        size = int(values.get("--size", "2" if latency else "65536"))
        iters = int(values.get("--iters", "1000" if latency else "5000"))
        qps = int(values.get("--qp", "1"))
        duration = int(values["--duration"]) if "--duration" in values else 0
    except ValueError:
        print(" Failed to parse parameter: not a number.\n Parser function exited with Error", file=sys.stderr)
        return 1
    if iters < 5 and not duration:
        print(" Iteration number can't be less than 5\n Parser function exited with Error", file=sys.stderr)
        return 1
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hw = store.effective()
    names = [h["name"] for h in hw["hcas"] if h.get("state") != "missing"]
    device = values.get("--ib-dev", names[0] if names else "")
    h = _hca(hw, device)
    if h is None:
        print(f" IB device {device} not found\n Unable to find the Infiniband/RoCE device", file=sys.stderr)
        return 1
    state, _phys = port_state(hw, h)
    ethernet = h["link_layer"] == "ethernet"
    if state != "Active":
        word = {"Initializing": "Init", "Armed": "Armed"}.get(state, "Down")
        print(
            f" Port number 1 state is {word}\n Couldn't set the link layer\n Couldn't get context for the device",
            file=sys.stderr,
        )
        return 1
    if not server:
        print(
            "\n************************************\n* Waiting for client to connect... *\n"
            "************************************",
            flush=True,
        )
    me = {
        "version": "24.10",
        "tool": tool,
        "guid": h["guid"],
        "leaf": h["leaf"],
        "lid": lid_of(hw, h),
        "node": hw["name"],
        "hca": h["name"],
        "extra_us": h["port"]["extra_us"],
        "leaf_us": hw["rdma"]["leaf_us"],
        "rate": h["rate_gbps"],
        "bandwidth": h["port"]["bandwidth"],
        "ethernet": ethernet,
        "qpn": random.randrange(0x80, 0xFFFF),
        "psn": random.randrange(1 << 24),
        "vaddr": random.randrange(1 << 46),
        "rkey": random.randrange(1 << 24),
    }
    try:
        peer = _meet(server, port, me)
    except KeyboardInterrupt:
        return 130
    except (OSError, Lost, ValueError):
        if server:
            print(
                f" Couldn't connect to {server}:{port}\n Unable to open file descriptor for socket connection\n"
                " Unable to init the socket connection",
                file=sys.stderr,
            )
        else:
            print(" Unable to init the socket connection", file=sys.stderr)
        return 1
    if peer["tool"] != tool:
        print(
            " ethernet_read_keys: Couldn't read remote address\n Unable to read to socket/rdma_cm\n "
            "Failed to exchange data between server and clients",
            file=sys.stderr,
        )
        return 1
    if bool(peer["ethernet"]) != ethernet:
        print(" Failed to modify QP to RTR\n Unable to Connect the HCA's through the link", file=sys.stderr)
        return 1
    both = not latency and "--bidirectional" in values
    head = _header(tool, h, qps, values, latency, ethernet)
    head += [
        f" {side} address: LID {'0000' if ethernet else format(who['lid'], '#04x')} QPN 0x{who['qpn']:04x} PSN "
        f"0x{who['psn']:06x}"
        + ("" if tool.startswith("ib_send") else f" RKey 0x{who['rkey']:06x} VAddr 0x{who['vaddr']:016x}")
        for side, who in (("local", me), ("remote", peer))
    ]
    head.append(_LINE)
    sizes = [1 << n for n in range(1, 24)] if "--all" in values else [size]
    rows = [
        _latency(hw, me, peer, tool, one, iters, duration)
        if latency
        else _bandwidth(hw, me, peer, one, iters, "--report_gbits" in values, qps, both)
        for one in sizes
    ]
    json_file = (
        values.get("--out_json_file", "perftest_out.json")
        if "--out_json" in values or "--out_json_file" in values
        else ""
    )
    if json_file:
        try:
            _write_json(json_file, tool, h, qps, values, latency, ethernet, rows[-1])
        except OSError as e:
            print(f" Failed to open {json_file}: {e.strerror}", file=sys.stderr)
            return 1
    if duration and not latency:
        print(" WARNING: BW peak won't be measured in this run.")
    for line in head:
        print(line)
    print(_columns(latency, duration, "--report_gbits" in values))
    for row in rows:
        print(_cells(row, latency, duration))
    print(_LINE, flush=True)
    return 0


def _info(h: Hw, qps: int, latency: bool, ethernet: bool, values: dict[str, str]) -> list[tuple[str, str, str]]:
    """(label, json key, value) of the block above the table."""
    return [
        ("Dual-port", "Dual_port", "OFF"),
        ("Device", "Device", h["name"]),
        ("Number of qps", "Number_of_qps", str(qps)),
        ("Transport type", "Transport_type", "IB"),
        ("Connection type", "Connection_type", "RC"),
        ("Using SRQ", "Using_SRQ", "OFF"),
        ("PCIe relax order", "PCIe_relax_order", "ON"),
        ("ibv_wr* API", "ibv_wr* API", "ON"),
        ("TX depth", "TX_depth", "1" if latency else "128"),
        ("CQ Moderation", "CQ_Moderation", "100"),
        ("Mtu", "Mtu", "4096[B]"),
        ("Link type", "Link_type", "Ethernet" if ethernet else "IB"),
        ("Max inline data", "Max_inline_data", "220[B]" if latency else "0[B]"),
        ("rdma_cm QPs", "rdma_cm_QPs", "ON" if "--rdma_cm" in values else "OFF"),
        ("Data ex. method", "Data_ex_method", "Ethernet"),
    ]


def _header(tool: str, h: Hw, qps: int, values: dict[str, str], latency: bool, ethernet: bool) -> list[str]:
    info = {label: value for label, _key, value in _info(h, qps, latency, ethernet, values)}
    lines = [
        _LINE,
        " " * 20 + _title(tool, values),
        f" Dual-port       : {info['Dual-port']}\t\tDevice         : {info['Device']}",
        f" Number of qps   : {info['Number of qps']}\t\tTransport type : {info['Transport type']}",
        f" Connection type : {info['Connection type']}\t\tUsing SRQ      : {info['Using SRQ']}",
        f" PCIe relax order: {info['PCIe relax order']}",
        f" ibv_wr* API     : {info['ibv_wr* API']}",
        f" TX depth        : {info['TX depth']}",
    ]
    if not latency:
        lines.append(f" CQ Moderation   : {info['CQ Moderation']}")
    lines += [f" Mtu             : {info['Mtu']}", f" Link type       : {info['Link type']}"]
    if ethernet:
        lines.append(f" GID index       : {values.get('--gid-index', '3')}")
    lines += [
        f" Max inline data : {info['Max inline data']}",
        f" rdma_cm QPs\t : {info['rdma_cm QPs']}",
        f" Data ex. method : {info['Data ex. method']}",
        _LINE,
    ]
    return lines


def _latency(hw: Hw, me: Hw, peer: Hw, tool: str, size: int, iters: int, duration: int) -> dict[str, float]:
    typical = one_way_us(hw, me, peer) + (0.12 if tool == "ib_send_lat" else 0.0) + size / (float(me["rate"]) * 125.0)
    if tool == "ib_read_lat":
        typical = typical * 2 - 0.4
    typical += random.uniform(-0.015, 0.015)
    return {
        "MsgSize": size,
        "n_iterations": iters,
        "t_min": typical - 0.05,
        "t_max": typical + random.uniform(1.2, 4.0),
        "t_typical": typical,
        "t_avg": typical + 0.01,
        "t_stdev": random.uniform(0.02, 0.05),
        "percentile_99": typical + random.uniform(0.09, 0.13),
        "percentile_99.9": typical + random.uniform(0.4, 0.9),
    }


def _title(tool: str, values: dict[str, str]) -> str:
    title = _TITLES[tool]
    return title.replace(" BW Test", " Bidirectional BW Test") if "--bidirectional" in values else title


def _bandwidth(
    hw: Hw, me: Hw, peer: Hw, size: int, iters: int, gbits: bool, qps: int = 1, both: bool = False
) -> dict[str, float]:
    share = float(hw["rdma"].get("bandwidth_share", 0.98)) * min(float(me["bandwidth"]), float(peer["bandwidth"]))
    rate = min(float(me["rate"]), float(peer["rate"]))
    # One queue pair and messages of 64 KiB do not fill an NDR link.
    weak = 0.95 if rate >= 400 and qps == 1 and size <= 65536 else 1.0
    gbps = rate * share * weak * min(1.0, size / 16384) * (2 if both else 1)
    gbps *= random.uniform(0.998, 1.0)
    scale = 1.0 if gbits else 1e9 / 8 / (1 << 20)
    return {
        "MsgSize": size,
        "n_iterations": iters,
        "BW_peak": gbps * 1.002 * scale,
        "BW_average": gbps * scale,
        "MsgRate": gbps * 1e3 / 8 / size,
    }


def _report(r: dict[str, float], latency: bool, duration: int, gbits: bool) -> list[str]:
    """The table of one size."""
    return [_columns(latency, duration, gbits), _cells(r, latency, duration)]


def _columns(latency: bool, duration: int, gbits: bool) -> str:
    if latency and duration:
        return " #bytes        #iterations       t_avg[usec]    tps average"
    if latency:
        return (
            " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
            "99% percentile[usec]   99.9% percentile[usec] "
        )
    unit = "Gb/sec" if gbits else "MiB/sec"
    return f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"


def _cells(r: dict[str, float], latency: bool, duration: int) -> str:
    size, iters = int(r["MsgSize"]), int(r["n_iterations"])
    if latency and duration:
        return (
            f" {size:<7d}       {int(duration * 1e6 / (2 * r['t_avg'])):<10d}       {r['t_avg']:<7.2f}      "
            f"  {1e6 / (2 * r['t_avg']):<7.2f}"
        )
    if latency:
        return (
            f" {size:<7d} {iters}          {r['t_min']:<7.2f}        {r['t_max']:<7.2f}      "
            f"{r['t_typical']:<7.2f}  \t       "
            f"{r['t_avg']:<7.2f}     \t{r['t_stdev']:<7.2f}\t\t{r['percentile_99']:<7.2f} \t"
            f"\t{r['percentile_99.9']:<7.2f}"
        )
    peak = 0.0 if duration else r["BW_peak"]
    if size <= 4:  # small messages are printed with more digits
        return (
            f" {size:<7d}    {iters:<10d}       {peak:<7.6f}            {r['BW_average']:<7.6f}            "
            f"{r['MsgRate']:<7.6f}"
        )
    if duration:
        iters = int(duration * r["MsgRate"] * 1e6)
    return (
        f" {size:<7d}    {iters:<10d}       {peak:<7.2f}            {r['BW_average']:<7.2f}\t\t     "
        f"{r['MsgRate']:<7.6f}"
    )


def _write_json(
    file: str,
    tool: str,
    h: Hw,
    qps: int,
    values: dict[str, str],
    latency: bool,
    ethernet: bool,
    results: dict[str, float],
) -> None:
    info: dict[str, Any] = {"test": _title(tool, values).replace(" ", "_")}
    for _label, key, value in _info(h, qps, latency, ethernet, values):
        info[key] = int(value) if value.isdigit() else value
    with open(file, "w", encoding="utf-8") as f:
        json.dump({"test_info": info, "results": {k: round(v, 6) for k, v in results.items()}}, f, indent=1)
        f.write("\n")
