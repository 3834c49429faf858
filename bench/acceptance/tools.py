# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which module judges a capture, with which options: by the index, the folder's name, and then the text itself."""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES, PROFILES
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import worst

from bench import gaterun
from bench.acceptance.compare import measured_unit
from bench.acceptance.corpus import Capture, flatten

_UTILS = "ansible_collections.ai_infra.gpu_rack.plugins.module_utils"
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_PRODUCT = re.compile(
    r"(?:Product Name\s*:\s*|GPU \d+: |^\|\s*\d+\s+| device +\d+ \[[^\]]*\] )(NVIDIA [A-Za-z0-9 ]+?)\s*"
    r"(?:\(|$|\s{2,})",
    re.MULTILINE,
)
_ONE_GPU = re.compile(r"^GPU (?:\d+: |[0-9A-Fa-f]{8}:[0-9A-Fa-f:.]+\s*$)", re.MULTILINE)
_RANK = {"pass": 0, "warn": 1, "unknown": 2, "fail": 3}
_OWN_KEYS = frozenset(
    ("checks", "evidence", "summary", "verdict", "gate", "changed", "failed", "msg", "fleet", "warnings")
)


@dataclasses.dataclass(frozen=True, slots=True)
class Tool:
    """A kind of capture: words in a folder's name, a text only it prints, its module, and the parser of its values."""

    name: str
    words: tuple[str, ...]
    text: re.Pattern[str]
    module: str
    parsers: tuple[tuple[str, str], ...] = ()
    options: Callable[[Capture, str], dict[str, Any]] = lambda capture, text: {}
    beside: str = ""
    """A second module that judges what of the same text the first one leaves to it: Fabric in nvidia-smi -q."""


def _ibstat(capture: Capture, text: str) -> dict[str, Any]:
    """Ports the index expects, else those that are listed; rate and layer that most of them have."""
    listed = re.findall(r"^CA '([^']+)'", text, re.MULTILINE)
    named = next((v for k, v in capture.options.items() if k in ("hcas", "devices", "ports") and v), None)
    layers = [x.lower() for x in re.findall(r"Link layer:\s*(\w+)", text)]
    rates = [int(x) for x in re.findall(r"^\s*Rate:\s*(\d+)", text, re.MULTILINE)]
    options: dict[str, Any] = {"hcas": named or list(dict.fromkeys(listed)) or ["mlx5_0"]}
    if capture.profile is None and rates:
        options["rate"] = max(rates) or 400
    if layers and set(layers) == {"ethernet"}:
        options["link_layer"] = "ethernet"
    return options


def _driver(capture: Capture, text: str) -> dict[str, Any]:
    version = re.search(r"Driver Version\s*:\s*([\d.]+)", text)
    return {"version": version[1] if version else "580.95.05", "fabric_manager": False}


TOOLS: tuple[Tool, ...] = (
    Tool(
        "nvidia-smi topo -m",
        ("topo", "topology"),
        re.compile(r"^\s*#?\s*GPU0\s.*(?:\bX\b|GPU1|CPU Affinity)", re.MULTILINE),
        "nvlink_topology",
        (("_nvidia_topo", "parse"),),
    ),
    Tool(
        "nvidia-smi nvlink",
        ("nvlink",),
        re.compile(
            r"^\s*Link \d+:? (?:[\d.]+ GB/s|<inactive>|.*Errors?:)|all links are inactive|support Nvlink",
            re.MULTILINE | re.IGNORECASE,
        ),
        "nvlink_status",
    ),
    Tool(
        "nvidia-smi -q",
        ("nvidia-smi-q", "smi-q", "nvidia-smi-query", "gpu-health", "ecc", "nvidia-smi"),
        re.compile(
            r"NVSMI LOG|<nvidia_smi_log>|Product Name +:|Driver/library version mismatch|NVIDIA-SMI has failed"
            r"|No devices were found|GPU is lost|^GPU [0-9A-F]{8}:[0-9A-F]{2}:|^ +Fabric *$"
            r"|^(?:index|name|gpu_name|uuid|timestamp|pci\.bus_id|driver_version), ",
            re.MULTILINE,
        ),
        "gpu_health",
        (("_smi_query", "parse"),),
        beside="nvlink_status",
    ),
    Tool(
        "ibstat",
        ("ibstat", "ib-port", "ibport", "perfquery", "ibqueryerrors", "counters"),
        re.compile(r"^CA '|ibpanic|^# Port (?:extended )?counters|^## Summary:|^Errors for ", re.MULTILINE),
        "ib_port",
        (("_ibstat", "parse"),),
        _ibstat,
    ),
    Tool(
        "ibping",
        ("ibping",),
        re.compile(r"ibping statistics|Pong from"),
        "ib_latency",
        (("_ibping", "parse_statistics"),),
    ),
    Tool(
        "perftest bandwidth",
        ("perftest-bw", "ib_write_bw", "bandwidth"),
        re.compile(r"BW Test|BW average|BW_average"),
        "ib_bandwidth",
        (("_bandwidth", "parse_bandwidth"), ("_perftest", "parse_bandwidth"), ("_bandwidth", "parse")),
    ),
    Tool(
        "perftest latency",
        ("perftest", "ib_write_lat", "latency"),
        re.compile(r"Latency Test|t_typical|t_avg"),
        "ib_latency",
        (("_perftest", "parse_latency"),),
    ),
    Tool(
        "nccl-tests",
        ("nccl",),
        re.compile(r"busbw|nccl-tests|out-of-place|Avg bus bandwidth"),
        "nccl_bandwidth",
        (("_nccl_tests", "parse"),),
    ),
    Tool(
        "chrony",
        ("chrony", "clock", "ntp"),
        re.compile(r"Reference ID\s*:|Leap status|MS Name/IP|^\^,|506 Cannot talk|^[0-9A-F]{8},", re.MULTILINE),
        "clock_sync",
        (("_chrony", "parse_tracking"), ("_chrony", "parse_sources")),
    ),
    Tool(
        "cpuidle",
        ("cpuidle", "cpu-idle", "cstate", "c-state", "idle"),
        re.compile(r"cpuidle/|cpuidle_|\bC1E?\b.*latency|analyzing CPU", re.IGNORECASE),
        "cpu_idle",
        (("_cpuidle", "parse"),),
    ),
    Tool(
        "numa",
        ("numa", "numactl", "numastat"),
        re.compile(r"available: \d+ nodes|physcpubind|^[0-9a-f]{8,16} (?:default|bind)|NUMA node\d", re.MULTILINE),
        "numa_binding",
        (("_numa_binding", "parse"),),
    ),
    Tool(
        "xid",
        ("xid", "dmesg", "kernel-log", "kmsg", "journal"),
        re.compile(r"NVRM: (?:GPU at |Xid)|nvidia-nvswitch\d|^\[ *\d+\.\d+\] ", re.MULTILINE),
        "xid",
    ),
    Tool("consul", ("consul",), re.compile(r'"CheckID"|"serfHealth"|"ServiceName"'), "consul_health"),
    Tool(
        "opensm and congestion control",
        ("opensm", "congestion", "dcqcn", "mlnx_qos", "roce", "switch"),
        re.compile(r"ar_sl_mask|routing_engine|Priority trust state|ROCE_CC_PRIO"),
        "rdma_congestion",
        (("_opensm", "parse"),),
    ),
    Tool(
        "kernel parameters",
        ("cmdline", "kernel-param", "kernel_param", "sysctl"),
        re.compile(r"BOOT_IMAGE=|^\S+ = \S+$", re.MULTILINE),
        "kernel_params",
    ),
)  # fmt: skip


def find(capture: Capture, text: str) -> Tool | None:
    """Return the tool of a capture: the index's word, then what the text is, then the folder's name."""
    said = (capture.tool or "").lower()
    by_module = next((t for t in TOOLS if said and said in (t.module, t.name)), None)
    if by_module:
        return by_module
    plain = _ESCAPE.sub("", text)
    named = [t for t in TOOLS if any(w in f"{said} {capture.folder.lower()}" for w in t.words)]
    fits = [t for t in TOOLS if t.text.search(plain)]
    # A folder's name says what was tried; where the text agrees with one of its tools there is no doubt.
    return next((t for t in named if t in fits), None) or (named[0] if named else None) or (fits[0] if fits else None)


def board_of(text: str) -> str | None:
    """Return the board profile of a text: by product, else by the widths of its NVLink cells. None has the others."""
    products = _PRODUCT.findall(text)
    plain = _ESCAPE.sub("", text)
    gpus = len(re.findall(r"^\s*GPU\d+\s.*\bX\b", plain, re.MULTILINE))
    gpus = gpus or len(re.findall(r"^GPU [0-9A-Fa-f:.]{10,}", plain, re.MULTILINE))
    gpus = gpus or len(re.findall(r"^GPU \d+: ", plain, re.MULTILINE))
    named = [n for n in NAMES if any(PROFILES[n].product_matches(p) for p in products) and n != "article"]
    for name in named:
        if PROFILES[name].gpu_count in (gpus, None):
            return name
    widths = {int(w) for w in re.findall(r"\bNV(\d+)\b", plain.split("Legend")[0])}
    if named:
        return named[0]
    if not gpus and not products:
        return "hgx_h100_8"  # of the network, the clock and the like: the rack's own board has the limits
    if products:
        return None
    if widths and max(widths) == 18 and gpus > 4:
        return "hgx_h100_8"
    return "hgx_h100_4" if widths and max(widths) == 6 and gpus == 4 else None


def arguments(tool: Tool, module: str, capture: Capture, text: str) -> dict[str, Any]:
    """Return the module's options: what the index gives under names the module knows, else by the text."""
    known = _spec(module)
    board = capture.profile if capture.profile in NAMES else board_of(text)
    aliases = {"expected_gpus": "gpus", "gpu_count": "gpus", "devices": "hcas", "board": "profile", "driver": "version"}
    aliases |= dict.fromkeys(("nvlink_width", "expected_width", "nvlinks"), "width")
    wanted: dict[str, Any] = {} if board is None else {"profile": board}
    if board is not None and len(set(_ONE_GPU.findall(text))) == 1:
        wanted["gpus"] = 1  # the tool was asked for one GPU (-i 0)
    wanted |= tool.options(capture, text)
    wanted |= {aliases.get(k, k): v for k, v in capture.options.items()}
    return {k: v for k, v in wanted.items() if k in known and k not in ("captured", "evidence_dir", "enforce")}


def _spec(module: str) -> dict[str, Any]:
    loaded = importlib.import_module(f"ansible_collections.ai_infra.gpu_rack.plugins.modules.{module}")
    spec: dict[str, Any] = getattr(loaded, "ARGUMENT_SPEC", None) or getattr(loaded, "ARGUMENTS", {})
    return spec


def judge(tool: Tool, capture: Capture, path: Path, text: str) -> dict[str, Any]:
    """Run the tool's module on the capture, and the second one beside it; the worst verdict counts."""
    given = {"captured": str(path), "enforce": False}
    options = arguments(tool, tool.module, capture, text)
    result = gaterun.run_module(tool.module, {**options, **given})
    board = PROFILES.get(str(options.get("profile")))
    if not tool.beside or (board is not None and not board.nvswitch) or "Fabric" not in text:
        return result
    more = gaterun.run_module(tool.beside, {**arguments(tool, tool.beside, capture, text), **given})
    bad = max((result, more), key=lambda r: _RANK[r["verdict"]])
    return {
        **result,
        "verdict": worst([result["verdict"], more["verdict"]]),
        "summary": bad["summary"],
        "checks": [*result["checks"], *more["checks"]],
    }


def measured(tool: Tool, result: Mapping[str, Any], text: str) -> dict[str, tuple[Any, str]]:
    """Return every value by dotted name with its unit: the module's own, its checks', and its parser's."""
    found: dict[str, tuple[Any, str]] = {}
    for utility, name in tool.parsers:
        for path, value in flatten(_parsed(utility, name, text)).items():
            # The parser of nvidia-smi names a line with its section: MIG Mode/Current.
            nested = path.replace("/", ".")
            found[nested] = (value, "")
            if nested.endswith(".Current"):
                found[nested.removesuffix(".Current")] = (value, "")
    for check in result.get("checks") or ():
        if check["value"] is not None:
            fact = str(check["check"]).rsplit(".", 1)[-1]
            unit = measured_unit(str(check["unit"]))
            found.setdefault(fact, (check["value"], unit))
            found[f"{str(check['subject']).replace('.', '_')}.{fact}"] = (check["value"], unit)
    own = {k: v for k, v in result.items() if k not in _OWN_KEYS and not k.startswith("_")}
    found |= {path: (value, "") for path, value in flatten(own).items()}
    return {**{path: (values, "") for path, values in _gathered(found).items()}, **found}


def _gathered(found: Mapping[str, tuple[Any, str]]) -> dict[str, list[Any]]:
    """Return what all entries of a list have under one name: the Xids of all events, the rates of all ports."""
    lists: dict[str, list[Any]] = {}
    for path, (value, _unit) in found.items():
        *before, last = path.split(".")
        if any(part.isdigit() for part in before) and not isinstance(value, (list, Mapping)):
            lists.setdefault(".".join([*(p for p in before if not p.isdigit()), last]), []).append(value)
    return lists


def _parsed(utility: str, name: str, text: str) -> Any:
    """Return what a parser of the gates reads; nothing when it refuses the text or is not there."""
    try:
        parser = getattr(importlib.import_module(f"{_UTILS}.{utility}"), name)
        data = parser(text)
    except (
        ImportError,
        AttributeError,
        ValueError,
        TypeError,
        RuntimeError,
    ):
        # Each parser's own error is a ValueError.
        return {}
    return _plain(data)


def _plain(data: Any) -> Any:
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return {f.name: _plain(getattr(data, f.name)) for f in dataclasses.fields(data)}
    if isinstance(data, Mapping):
        return {"-".join(map(str, k)) if isinstance(k, tuple) else str(k): _plain(v) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(x) for x in data]
    return sorted(data) if isinstance(data, (set, frozenset)) else data
