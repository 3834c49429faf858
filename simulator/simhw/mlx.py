# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's NIC tools: mlxconfig, mlxfwreset, mst, mlxlink, mlnx_qos, flint."""

from __future__ import annotations

import itertools
import sys

from simhw import hw as store
from simhw.hw import Hw

_ENUMS: dict[str, dict[str, str]] = {
    "LINK_TYPE_P1": {"1": "IB(1)", "2": "ETH(2)"},
    "PCI_WR_ORDERING": {"0": "per_mkey(0)", "1": "force_relax(1)"},
}
_ALIASES = {"ib": "1", "eth": "2", "true": "1", "false": "0", "per_mkey": "0", "force_relax": "1"}
_LIMITS = {
    "CNP_DSCP_P1": 63,
    "CNP_802P_PRIO_P1": 7,
    "ROCE_CC_PRIO_MASK_P1": 255,
    "MAX_ACC_OUT_READ": 128,
    "NUM_OF_VFS": 127,
}


class Refused(Exception):
    pass


def find(hw: Hw, device: str) -> Hw:
    """An HCA by RDMA name, PCI address (with or without domain), netdev or mst device."""
    for i, h in enumerate(hw["hcas"]):
        if h.get("state") == "missing":
            continue
        names = {h["name"], h["pci"], h["pci"][5:], h["netdev"], f"/dev/mst/mt4129_pciconf{i}"}
        if device in names:
            return dict(h)
    raise Refused(f"-E- Failed to open device: {device}. Cannot open {device}.")


def _normal(name: str, value: str, kind: str) -> str:
    word = _ALIASES.get(value.lower(), value)
    if name in _ENUMS:
        if word in _ENUMS[name]:
            return _ENUMS[name][word]
        if value in _ENUMS[name].values():
            return value
        raise Refused(f"-E- Failed to set value {value} for param {name}.")
    if kind.startswith(("True(", "False(")):
        if word in ("0", "1"):
            return "True(1)" if word == "1" else "False(0)"
        raise Refused(f"-E- Failed to set value {value} for param {name}.")
    try:
        number = int(word, 0)
    except ValueError:
        raise Refused(f"-E- Failed to parse {name}={value}: the value is not a number.") from None
    if not 0 <= number <= _LIMITS.get(name, 0xFFFFFFFF):
        raise Refused(f"-E- Value {value} for {name} is out of range: 0-{_LIMITS.get(name, 0xFFFFFFFF)}.")
    return str(number)


def _device_header(h: Hw, device: str) -> str:
    return (
        f"\nDevice #1:\n----------\n\nDevice type:        {h['model']:<16}\nName:               "
        f"{h['part_number']:<16}\n"
        f"Description:        {h['description']}\nDevice:             {device:<16}\n"
    )


def _values(hw: Hw, h: Hw) -> tuple[Hw, Hw, Hw]:
    config = hw["mlxconfig"]
    default = dict(config.get("default") or {})
    current = {**default, **((config.get("current") or {}).get(h["name"]) or {})}
    after = {**current, **((config.get("pending") or {}).get(h["name"]) or {})}
    return default, current, after


def _query(hw: Hw, h: Hw, device: str, names: list[str], enhanced: bool) -> int:
    default, current, after = _values(hw, h)
    for name in names:
        if name not in current:
            raise Refused(f"-E- The Device doesn't support {name} parameter.")
    print(_device_header(h, device))
    if enhanced:
        print(f"{'Configurations:':<50}  {'Default':<20}{'Current':<20}{'Next Boot':<20}")
    else:
        print(f"{'Configurations:':<52} {'Next Boot':<20}")
    changed = False
    for name in names or list(current):
        if enhanced:
            mark = "*" if after[name] != default[name] or after[name] != current[name] else " "
            changed |= mark == "*"
            print(f"{mark}       {name:<44}{default[name]:<20}{current[name]:<20}{after[name]:<20}")
        else:
            print(f"        {name:<44}{after[name]:<20}")
    if changed:
        print("The '*' shows parameters with next value different from default/current value.")
    return 0


def mlxconfig(argv: list[str]) -> int:
    hw = store.effective()
    device, yes, enhanced = "", False, False
    words: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-d", "--dev") and rest:
            device = rest.pop(0)
        elif word in ("-y", "--yes"):
            yes = True
        elif word in ("-e", "--enable_verbosity"):
            enhanced = True
        elif word in ("-v", "--version"):
            print("mlxconfig, mft 4.33.0-169, built on Aug 12 2025, 10:15:32. Git SHA Hash: N/A")
            return 0
        else:
            words.append(word)
    try:
        if not words:
            raise Refused("-E- No command found. For more information please run mlxconfig -h|--help.")
        command, args = words[0], words[1:]
        devices = [device] if device else [h["name"] for h in hw["hcas"] if h.get("state") != "missing"]
        if command in ("q", "query"):
            for d in devices:
                _query(hw, find(hw, d), d, args, enhanced)
            return 0
        if not device:
            raise Refused("-E- You must specify a device. Use the option -d.")
        h = find(hw, device)
        if command in ("s", "set"):
            return _set(hw, h, device, args, yes)
        if command in ("r", "reset"):
            return _reset(hw, h, device, yes)
        raise Refused(f"-E- Unknown command: {command}. For more information please run mlxconfig -h|--help.")
    except Refused as e:
        print(e, file=sys.stderr)
        return 3


def _confirm(yes: bool, question: str) -> bool:
    if yes:
        print(f"{question} (y/n) [n] : y")
        return True
    sys.stdout.write(f"{question} (y/n) [n] : ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _set(hw: Hw, h: Hw, device: str, args: list[str], yes: bool) -> int:
    default, _current, after = _values(hw, h)
    new: dict[str, str] = {}
    for word in args:
        name, equals, value = word.partition("=")
        if not equals:
            raise Refused(f"-E- Failed to parse {word}: no value given. Use PARAM=VALUE.")
        if name not in default:
            raise Refused(f"-E- The Device doesn't support {name} parameter.")
        new[name] = _normal(name, value, str(default[name]))
    if not new:
        raise Refused("-E- No configuration given. Use PARAM=VALUE.")
    print(_device_header(h, device))
    print(f"{'Configurations:':<52} {'Next Boot':<15} {'New':<20}")
    for name, value in new.items():
        print(f"        {name:<44}{after[name]:<20}{value:<20}")
    print()
    if not _confirm(yes, " Apply new Configuration?"):
        print("Aborted by user.")
        return 1

    def change(raw: Hw) -> None:
        config = raw.setdefault("mlxconfig", {})
        pending = config.setdefault("pending", {}).setdefault(h["name"], {})
        current = (config.get("current") or {}).get(h["name"]) or {}
        for name, value in new.items():
            if current.get(name, default[name]) == value:
                pending.pop(name, None)
            else:
                pending[name] = value

    store.update(change)
    print("Applying... Done!\n-I- Please reboot machine to load new configurations.")
    return 0


def _reset(hw: Hw, h: Hw, device: str, yes: bool) -> int:
    print(_device_header(h, device))
    if not _confirm(yes, " Reset configuration for the device?"):
        print("Aborted by user.")
        return 1
    default = _values(hw, h)[0]

    def change(raw: Hw) -> None:
        raw.setdefault("mlxconfig", {}).setdefault("pending", {})[h["name"]] = dict(default)

    store.update(change)
    print("Applying... Done!\n-I- Please reboot machine to load new configurations.")
    return 0


def device_of(argv: list[str]) -> str:
    """Return the value of -d, "" without one."""
    return next((value for option, value in itertools.pairwise(argv) if option == "-d"), "")


def mlxfwreset(argv: list[str]) -> int:
    hw = store.effective()
    device = device_of(argv)
    yes = "-y" in argv or "--yes" in argv
    try:
        if not device:
            raise Refused("-E- You must specify a device. Use the option -d.")
        h = find(hw, device)
    except Refused as e:
        print(e, file=sys.stderr)
        return 1
    if "q" in argv or "query" in argv:
        print(
            '\nReset-levels:\n0: Driver, PCI link, network link will remain up ("live-Patch")'
            "        -Not Supported\n3: Driver restart and PCI reset"
            "                                        -Supported     (default)\n4: Warm Reboot"
            "                                                         -Supported"
        )
        return 0
    if "r" not in argv and "reset" not in argv:
        print("-E- No command found: use query or reset.", file=sys.stderr)
        return 1
    print(f"\n-I- The reset level for device, {device} is:\n\n3: Driver restart and PCI reset")
    if not _confirm(yes, "Continue with reset?"):
        print("Aborted by user.")
        return 1

    def change(raw: Hw) -> None:
        config = raw.setdefault("mlxconfig", {})
        values = (config.get("pending") or {}).pop(h["name"], None)
        if values:
            config.setdefault("current", {}).setdefault(h["name"], {}).update(values)

    store.update(change)
    print(
        "-I- Sending Reset Command To Fw             -Done\n-I- Stopping Driver                         -Done\n"
        "-I- Resetting PCI                           -Done\n-I- Starting Driver                         -Done\n"
        "-I- Restarting MST                          -Done\n-I- FW was loaded successfully."
    )
    return 0


def mst(argv: list[str]) -> int:
    hw = store.effective()
    command = argv[0] if argv else "help"
    present = [h for h in hw["hcas"] if h.get("state") != "missing"]
    if command in ("start", "restart"):
        print(
            "Starting MST (Mellanox Software Tools) driver set\nLoading MST PCI module - Success\n"
            "Loading MST PCI configuration module - Success\nCreate devices\nUnloading MST PCI module (unused) - "
            "Success"
        )
        store.update_state(lambda s: s.update(mst=True))
        return 0
    if command == "stop":
        print(
            "Stopping MST (Mellanox Software Tools) driver set\nUnloading MST PCI configuration module (unused) "
            "- Success"
        )
        store.update_state(lambda s: s.update(mst=False))
        return 0
    if command == "version":
        print("mst, mft 4.33.0-169, built on Aug 12 2025, 10:15:32. Git SHA Hash: N/A")
        return 0
    if command != "status":
        print("Usage: /usr/bin/mst {start|stop|status|restart|version}", file=sys.stderr)
        return 1
    on = bool(store.state().get("mst"))
    print(
        "MST modules:\n------------\n    MST PCI module is not loaded\n    MST PCI configuration module "
        + ("loaded" if on else "is not loaded")
        + "\n"
    )
    if "-v" in argv:
        print("PCI devices:\n------------")
        row = "{:<24}{:<30}{:<10}{:<16}{:<40}{:<5}"
        print(row.format("DEVICE_TYPE", "MST", "PCI", "RDMA", "NET", "NUMA"))
        for i, h in enumerate(present):
            dev = f"/dev/mst/mt4129_pciconf{i}" if on else "NA"
            print(row.format("ConnectX7(rev:0)", dev, h["pci"][5:], h["name"], f"net-{h['netdev']}", h["numa"]))
    else:
        print("MST devices:\n------------")
        if not on or not present:
            print("\tNo MST devices found")
        for i, h in enumerate(present):
            if on:
                print(
                    f"/dev/mst/mt4129_pciconf{i}         - PCI configuration cycles access.\n"
                    f"                                   domain:bus:dev.fn={h['pci']} addr.reg=88 data.reg=92 "
                    "cr_bar.gw_offset=-1\n                                   Chip revision is: 00"
                )
    return 0


def mlxlink(argv: list[str]) -> int:
    hw = store.effective()
    device = device_of(argv)
    try:
        h = find(hw, device)
    except Refused:
        print(f'-E- Failed to open device: "{device}", No such file or directory', file=sys.stderr)
        return 1
    port = h["port"]
    ib = h["link_layer"] == "infiniband"
    up = port["phys"] == "LinkUp"
    speed = {400: "NDR", 200: "HDR", 100: "EDR"}.get(h["rate_gbps"], "NDR") if ib else f"{h['rate_gbps']}G"
    state = ("Active" if port["state"] == "Active" else port["state"]) if up else port["phys"]
    recommendation = "No issue was observed" if up else "The cable is unplugged or the peer port is down"
    rows = [
        ("State", state),
        ("Physical state", "LinkUp" if up else port["phys"]),
        ("Speed", f"IB-{speed}" if ib and up else (speed if up else "N/A")),
        ("Width", "4x" if up else "N/A"),
        ("FEC", "Interleaved_Standard_RS_FEC_PLR - (544,514)" if up else "N/A"),
        ("Loopback Mode", "No Loopback"),
        ("Auto Negotiation", "ON"),
    ]
    print("\nOperational Info\n----------------")
    for key, value in rows:
        print(f"{key:<34}: {value}")
    print("\nTroubleshooting Info\n--------------------")
    for key, value in (
        ("Status Opcode", "0" if up else "1024"),
        ("Group Opcode", "N/A"),
        ("Recommendation", recommendation),
    ):
        print(f"{key:<34}: {value}")
    print("\nTool Information\n----------------")
    for key, value in (
        ("Firmware Version", h["firmware"]),
        ("amBER Version", "4.10"),
        ("MFT Version", "mft 4.33.0-169"),
    ):
        print(f"{key:<34}: {value}")
    if "-c" in argv or "--show_counters" in argv:
        print("\nPhysical Counters and BER Info\n------------------------------")
        for key, value in (
            ("Time Since Last Clear [Min]", "1440.0"),
            ("Symbol Errors", port["symbol_errors"]),
            ("Symbol BER", "15E-255"),
            ("Effective Physical Errors", port["symbol_errors"]),
            ("Effective Physical BER", "15E-255"),
            ("Raw Physical BER", "1E-9"),
            ("Link Down Counter", port["link_downed"]),
            ("Link Error Recovery Counter", "0"),
        ):
            print(f"{key:<34}: {value}")
    return 0


_COUNTERS = (
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
)
# The kernel reads them from the standard's PortCounters, which saturate.
_MOST = {"symbol_error": 0xFFFF, "link_downed": 0xFF}


def kernel_counters(h: Hw) -> dict[str, int]:
    """What the kernel shows in ports/1/counters of an HCA, by file name."""
    port = h["port"]
    values = {"symbol_error": int(port["symbol_errors"]), "link_downed": int(port["link_downed"])}
    return {name: min(values.get(name, 0), _MOST.get(name, 0)) for name in _COUNTERS}


_QOS_DEFAULT = {"trust": "pcp", "pfc": "0,0,0,0,0,0,0,0"}


def mlnx_qos(argv: list[str]) -> int:
    """Quality of service of an Ethernet port. Kept in the running kernel only: gone after a reboot."""
    hw = store.effective()
    interface, trust, pfc = "", "", ""
    words: list[str] = []
    for word in argv:
        words += word.split("=", 1) if word.startswith("--") and "=" in word else [word]
    rest = words
    while rest:
        word, rest = rest[0], rest[1:]
        if word in ("-i", "--interface") and rest:
            interface, rest = rest[0], rest[1:]
        elif word == "--trust" and rest:
            trust, rest = rest[0], rest[1:]
        elif word in ("-f", "--pfc") and rest:
            pfc, rest = rest[0], rest[1:]
        else:
            print(f"mlnx_qos: error: no such option: {word}", file=sys.stderr)
            return 2
    ports = {h["netdev"]: h for h in hw["hcas"] if h.get("state") != "missing"}
    if interface not in ports or ports[interface]["link_layer"] != "ethernet":
        print(f"Interface doesn't exist or is not an Ethernet port: {interface}", file=sys.stderr)
        return 1
    if trust and trust not in ("pcp", "dscp"):
        print("trust should be pcp or dscp", file=sys.stderr)
        return 1
    if pfc and (len(pfc.split(",")) != 8 or set(pfc.split(",")) - {"0", "1"}):
        print("PFC should be a list of 8 values of 0 or 1", file=sys.stderr)
        return 1

    def change(s: Hw) -> None:
        now = s.setdefault("qos", {}).setdefault(interface, dict(_QOS_DEFAULT))
        if trust:
            now["trust"] = trust
        if pfc:
            now["pfc"] = pfc

    now = {**_QOS_DEFAULT, **store.update_state(change)["qos"][interface]}
    enabled = str(now["pfc"]).split(",")
    print("DCBX mode: OS controlled")
    print(f"Priority trust state: {now['trust']}")
    if now["trust"] == "dscp":
        print("dscp2prio mapping:")
        for priority in range(8):
            print(f"\tprio:{priority} dscp:" + "".join(f"{d:02d}," for d in range(priority * 8, priority * 8 + 8)))
    print("default priority:")
    print("Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,max_buffer_size=4173504")
    print("Cable len: 7\nPFC configuration:")
    print("\tpriority    " + "   ".join(str(i) for i in range(8)))
    print("\tenabled     " + "   ".join(enabled))
    print("\tbuffer      " + "   ".join(enabled))
    for tc in range(8):
        print(f"tc: {tc} ratelimit: unlimited, tsa: vendor\n\t priority:  {tc}")
    return 0


def cma_roce_tos(argv: list[str]) -> int:
    """Type of service of connections made by the RDMA connection manager. Kept in the running kernel only."""
    hw = store.effective()
    device, port, tos = "", "1", ""
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word in ("-d", "-p", "-t") and rest:
            value = rest.pop(0)
            device, port, tos = (
                value if word == "-d" else device,
                value if word == "-p" else port,
                value if word == "-t" else tos,
            )
        else:
            print(
                "Usage:\n    cma_roce_tos OPTIONS\n\nOptions:\n    -h      show this help\n    -d <dev>    use "
                "IB device "
                "<dev> (default mlx5_0)\n    -p <port>   use port <port> of IB device (default 1)\n    -t <TOS>    set "
                "TOS of RoCE RDMA_CM applications (0)"
            )
            return 0 if word == "-h" else 1
    try:
        h = find(hw, device or "mlx5_0")
    except Refused:
        print(f"Can't find device {device}", file=sys.stderr)
        return 1
    if port != "1" or h["link_layer"] != "ethernet":
        print(f"Port {port} of {h['name']} is not a RoCE port", file=sys.stderr)
        return 1
    if tos and not (tos.isdigit() and int(tos) < 256):
        print(f"Invalid TOS {tos}", file=sys.stderr)
        return 1

    def change(s: Hw) -> None:
        if tos:
            s.setdefault("cma_tos", {})[h["name"]] = int(tos)

    print(store.update_state(change).get("cma_tos", {}).get(h["name"], 0))
    return 0


def flint(argv: list[str]) -> int:
    hw = store.effective()
    device = device_of(argv)
    try:
        h = find(hw, device)
    except Refused:
        print(f"-E- Cannot open Device: {device}. No such file or directory. MFE_CR_ERROR", file=sys.stderr)
        return 1
    if "q" not in argv and "query" not in argv:
        print("-E- Command not supported here: use query.", file=sys.stderr)
        return 7
    guid = h["guid"][2:]
    for key, value in (
        ("Image type:", "FS4"),
        ("FW Version:", h["firmware"]),
        ("FW Release Date:", "27.11.2024"),
        ("Product Version:", h["firmware"]),
        ("Description:", "UID                GuidsNumber"),
        ("Base GUID:", f"{guid}        4"),
        ("PSID:", h["psid"]),
        ("Security Attributes:", "secure-fw"),
    ):
        print(f"{key:<23}{value}")
    return 0
