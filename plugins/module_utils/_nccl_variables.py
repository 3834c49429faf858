# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NCCL and PyTorch read from the environment, and a linter for it.

NCCL ignores a name it does not know without a word, so a typing error, a renamed variable or one that another library
reads changes nothing and nobody notices. Sources of the table: NCCL's user guide "Environment Variables" and its
parameter definitions (2.27), PyTorch's ProcessGroupNCCL header and pull request 114077 (the rename).
Pure functions, no I/O.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Placement = Literal["library", "framework"]
PLACEMENTS: tuple[Placement, ...] = ("library", "framework")
_PLACE_NAMES = {"library": "/etc/nccl.conf", "framework": "the unit's environment"}

Version = tuple[int, int]
DEFAULT_VERSION: Version = (2, 27)
MAX_VALUE_CHARS = 1023
"""NCCL reads a line of its configuration file into a buffer of 1024 bytes and cuts the rest off."""
MAX_HCAS = 32
"""NCCL's fixed upper limit of RDMA devices in a process."""

_FLAG = "flag"  # 0 or 1
_INT = "int"  # a whole number between `low` and `high`
_FLOAT = "float"
_ENUM = "enum"  # one of `values`, upper and lower case alike
_TEXT = "text"
_PATH = "path"
_NAMES = "names"  # comma-separated names, with NCCL's prefixes ^ and =
_HCAS = "hcas"  # as _NAMES, and only in the exact-match form
_BOOL = "bool"  # PyTorch's spelling: 0/1, yes/no, true/false

_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PXN", "P2C", "PHB", "SYS", "0", "1", "2", "3", "4")


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """One variable: the values it takes, who reads it, since which NCCL release, and what to tell people about it.

    `place` says where it may stand: `library` is /etc/nccl.conf (one truth for every process of the node), `framework`
    is the unit's environment, `both` is for settings that legitimately differ between two units of one node.
    """

    kind: str
    place: str = "library"
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()
    since: Version | None = None
    debug: bool = False
    advice: str = ""
    ethernet_only: bool = False


def _v(kind: str, **options: Any) -> Variable:
    return Variable(kind, **options)


_DEBUGGING = "its user guide lists it under Debugging: not for production, it keeps NCCL from choosing by itself"

# Documented as system configuration: may stay set.
_SYSTEM: dict[str, Variable] = {
    "NCCL_SOCKET_IFNAME": _v(_NAMES, place="both"),
    "NCCL_SOCKET_FAMILY": _v(_ENUM, values=("AF_INET", "AF_INET6")),
    "NCCL_SOCKET_RETRY_CNT": _v(_INT, low=1, since=(2, 24)),
    "NCCL_SOCKET_RETRY_SLEEP_MSEC": _v(_INT, low=1, since=(2, 24)),
    "NCCL_SOCKET_POLL_TIMEOUT_MSEC": _v(_INT, low=0, since=(2, 28)),
    "NCCL_SOCKET_NTHREADS": _v(_INT, low=1, high=16),
    "NCCL_NSOCKS_PERTHREAD": _v(_INT, low=1, high=64),
    "NCCL_CROSS_NIC": _v(_INT, low=0, high=2),
    "NCCL_IB_HCA": _v(_HCAS, place="both"),
    "NCCL_IB_TIMEOUT": _v(_INT, low=1, high=31),
    "NCCL_IB_RETRY_CNT": _v(_INT, low=0, high=7),
    "NCCL_IB_GID_INDEX": _v(_INT, low=-1, high=255, ethernet_only=True),
    "NCCL_IB_ADDR_FAMILY": _v(_ENUM, values=("AF_INET", "AF_INET6"), since=(2, 21), ethernet_only=True),
    "NCCL_IB_ADDR_RANGE": _v(_TEXT, since=(2, 21), ethernet_only=True),
    "NCCL_IB_ROCE_VERSION_NUM": _v(_INT, low=1, high=2, since=(2, 21), ethernet_only=True),
    "NCCL_IB_PKEY": _v(_INT, low=0, high=65535),
    "NCCL_IB_PKEY_VALUE": _v(_INT, low=-1, high=65535, since=(2, 31)),
    "NCCL_IB_SL": _v(_INT, low=-1, high=15),
    "NCCL_IB_TC": _v(_INT, low=-1, high=255),
    "NCCL_IB_FIFO_TC": _v(_INT, low=-1, high=255, since=(2, 22)),
    "NCCL_IB_RETURN_ASYNC_EVENTS": _v(_FLAG, since=(2, 23)),
    "NCCL_IB_EVENT_BASED_LB": _v(_FLAG, since=(2, 31)),
    "NCCL_IB_RAIL_POLICY": _v(_TEXT, since=(2, 30)),
    "NCCL_OOB_NET_ENABLE": _v(_FLAG, since=(2, 23)),
    "NCCL_OOB_NET_IFNAME": _v(_NAMES, since=(2, 23)),
    "NCCL_UID_STAGGER_THRESHOLD": _v(_INT, low=1, since=(2, 23)),
    "NCCL_UID_STAGGER_RATE": _v(_INT, low=1, since=(2, 23)),
    "NCCL_NET": _v(_TEXT),
    "NCCL_NET_PLUGIN": _v(_TEXT),
    "NCCL_TUNER_PLUGIN": _v(_TEXT),
    "NCCL_PROFILER_PLUGIN": _v(_TEXT),
    "NCCL_GIN_PLUGIN": _v(_TEXT, since=(2, 29)),
    "NCCL_RMA_PLUGIN": _v(_TEXT, since=(2, 30)),
    "NCCL_ENV_PLUGIN": _v(_TEXT, since=(2, 28)),
    "NCCL_IGNORE_CPU_AFFINITY": _v(_FLAG),
    "NCCL_CONF_FILE": _v(_PATH, place="framework", since=(2, 23)),
    "NCCL_COMM_ID": _v(_TEXT, place="framework"),
    "NCCL_HOSTID": _v(_TEXT, place="both"),
    "NCCL_COLLNET_ENABLE": _v(_FLAG),
    "NCCL_COLLNET_NODE_THRESHOLD": _v(_INT, low=0),
    "NCCL_CTA_POLICY": _v(_INT, low=0, high=2, since=(2, 27)),
    "NCCL_NETDEVS_POLICY": _v(_TEXT, since=(2, 28)),
    "NCCL_MULTI_RANK_GPU_ENABLE": _v(_FLAG, since=(2, 30)),
    "NCCL_TOPO_FILE": _v(_PATH, place="both"),
    "NCCL_SET_THREAD_NAME": _v(_FLAG),
    "NCCL_RAS_ENABLE": _v(_FLAG, since=(2, 24)),
    "NCCL_RAS_ADDR": _v(_TEXT, place="both", since=(2, 24)),
    "NCCL_RAS_TIMEOUT_FACTOR": _v(_FLOAT, low=0, since=(2, 24)),
    "NCCL_DEBUG": _v(_ENUM, place="both", values=("VERSION", "WARN", "INFO", "ABORT", "TRACE")),
    "NCCL_DEBUG_LEVELS": _v(_TEXT, place="both", since=(2, 32)),
    "NCCL_DEBUG_FILE": _v(_PATH, place="both", debug=True, advice="it is overwritten at every start of every process"),
    "NCCL_DEBUG_SUBSYS": _v(_TEXT, place="both", debug=True, advice="it only has an effect with NCCL_DEBUG=INFO"),
    "NCCL_DEBUG_TIMESTAMP_FORMAT": _v(_TEXT, place="both", since=(2, 26)),
    "NCCL_DEBUG_TIMESTAMP_LEVELS": _v(_TEXT, place="both", since=(2, 26)),
    "NCCL_TOPO_DUMP_FILE": _v(_PATH, place="both", debug=True, advice="every process writes it at its start"),
}

# Documented under "Debugging": allowed, with a warning.
_DEBUG: dict[str, Variable] = {
    "NCCL_P2P_DISABLE": _v(_FLAG),
    "NCCL_P2P_LEVEL": _v(_ENUM, values=_LEVELS),
    "NCCL_P2P_DIRECT_DISABLE": _v(_FLAG),
    "NCCL_SHM_DISABLE": _v(_FLAG),
    "NCCL_BUFFSIZE": _v(_INT, low=1),
    "NCCL_NTHREADS": _v(_ENUM, values=("64", "128", "256", "512")),
    "NCCL_MAX_NCHANNELS": _v(_INT, low=1, advice="deprecated since 2.17, use NCCL_MAX_CTAS"),
    "NCCL_MIN_NCHANNELS": _v(_INT, low=1, high=32, advice="deprecated since 2.17, use NCCL_MIN_CTAS"),
    "NCCL_CHECKS_DISABLE": _v(_FLAG, advice="deprecated since 2.2.12"),
    "NCCL_CHECK_POINTERS": _v(_FLAG),
    "NCCL_CHECK_MODE": _v(_ENUM, values=("DEFAULT", "DEBUG_LOCAL", "DEBUG_GLOBAL"), since=(2, 29)),
    "NCCL_LAUNCH_MODE": _v(_ENUM, values=("PARALLEL", "GROUP"), advice="GROUP is deprecated since 2.9"),
    "NCCL_IB_DISABLE": _v(_FLAG),
    "NCCL_IB_AR_THRESHOLD": _v(_INT, low=0),
    "NCCL_IB_OOO_RQ": _v(_FLAG, since=(2, 30)),
    "NCCL_IB_QPS_PER_CONNECTION": _v(_INT, low=1, high=128),
    "NCCL_IB_SPLIT_DATA_ON_QPS": _v(_FLAG, since=(2, 18)),
    "NCCL_IB_PCI_RELAXED_ORDERING": _v(_INT, low=0, high=2),
    "NCCL_IB_ADAPTIVE_ROUTING": _v(_INT, low=-2, high=1, since=(2, 16)),
    "NCCL_IB_ECE_ENABLE": _v(_FLAG, since=(2, 19)),
    "NCCL_IB_MERGE_NICS": _v(_FLAG, since=(2, 20)),
    "NCCL_NET_MERGE_POLICY": _v(_ENUM, values=("ALL", "RAIL"), since=(2, 30)),
    "NCCL_MEM_SYNC_DOMAIN": _v(_FLAG, since=(2, 16)),
    # vLLM sets this one for its own processes, so it may differ between units.
    "NCCL_CUMEM_ENABLE": _v(_FLAG, place="both", since=(2, 18)),
    "NCCL_CUMEM_HOST_ENABLE": _v(_FLAG, place="both", since=(2, 23)),
    "NCCL_NET_GDR_LEVEL": _v(_ENUM, values=_LEVELS),
    "NCCL_NET_GDR_C2C": _v(_FLAG, since=(2, 26)),
    "NCCL_NET_GDR_READ": _v(_FLAG),
    "NCCL_GDRCOPY_ENABLE": _v(_FLAG),
    "NCCL_GDRCOPY_FIFO_ENABLE": _v(_FLAG),
    "NCCL_GDRCOPY_SYNC_ENABLE": _v(_FLAG),
    "NCCL_GDRCOPY_FLUSH_ENABLE": _v(_FLAG),
    "NCCL_NET_SHARED_BUFFERS": _v(_FLAG),
    "NCCL_NET_SHARED_COMMS": _v(_FLAG),
    "NCCL_IGNORE_NET_MISMATCH": _v(_FLAG, since=(2, 30)),
    "NCCL_IGNORE_COLLNET_MISMATCH": _v(_FLAG, since=(2, 30)),
    "NCCL_ALGO": _v(_TEXT),
    "NCCL_PROTO": _v(_TEXT, advice="LL128 on a platform that does not support it corrupts data"),
    "NCCL_NVB_DISABLE": _v(_FLAG),
    "NCCL_PXN_DISABLE": _v(_FLAG),
    "NCCL_PXN_C2C": _v(_FLAG, since=(2, 27)),
    "NCCL_P2P_PXN_LEVEL": _v(_INT, low=0, high=2),
    "NCCL_RUNTIME_CONNECT": _v(_FLAG, since=(2, 22)),
    "NCCL_GRAPH_REGISTER": _v(_FLAG, place="both"),
    "NCCL_LOCAL_REGISTER": _v(_FLAG, since=(2, 19)),
    "NCCL_LEGACY_CUDA_REGISTER": _v(_FLAG, since=(2, 24)),
    "NCCL_WIN_ENABLE": _v(_FLAG, since=(2, 27)),
    "NCCL_SET_STACK_SIZE": _v(_FLAG),
    "NCCL_GRAPH_MIXING_SUPPORT": _v(_FLAG, place="both"),
    "NCCL_GRAPH_STREAM_ORDERING": _v(_FLAG, since=(2, 30)),
    "NCCL_RMA_EAGER_INIT": _v(_FLAG, since=(2, 31)),
    "NCCL_DMABUF_ENABLE": _v(_FLAG),
    "NCCL_P2P_NET_CHUNKSIZE": _v(_INT, low=1),
    "NCCL_P2P_LL_THRESHOLD": _v(_INT, low=0),
    "NCCL_ALLOC_P2P_NET_LL_BUFFERS": _v(_FLAG),
    "NCCL_COMM_BLOCKING": _v(_FLAG),
    "NCCL_CGA_CLUSTER_SIZE": _v(_INT, low=0, high=8, since=(2, 16)),
    "NCCL_MAX_CTAS": _v(_INT, low=1, high=64, since=(2, 17)),
    "NCCL_MIN_CTAS": _v(_INT, low=1, high=64, since=(2, 17)),
    "NCCL_NVLS_ENABLE": _v(_INT, low=0, high=2, since=(2, 17)),
    "NCCL_MNNVL_ENABLE": _v(_INT, low=0, high=2, since=(2, 21)),
    "NCCL_MNNVL_UUID": _v(_INT, since=(2, 25)),
    "NCCL_MNNVL_CLIQUE_ID": _v(_INT, since=(2, 25)),
    "NCCL_LAUNCH_ORDER_IMPLICIT": _v(_FLAG, since=(2, 26)),
    "NCCL_LAUNCH_RACE_FATAL": _v(_FLAG, since=(2, 26)),
    "NCCL_IPC_USE_ABSTRACT_SOCKET": _v(_FLAG, since=(2, 29)),
    "NCCL_SYM_GIN_KERNELS_ENABLE": _v(_FLAG, since=(2, 29)),
}

# Read by NCCL 2.27 but not in its user guide: known, so not a typing error, but without a promise.
_UNDOCUMENTED: dict[str, Variable] = {
    f"NCCL_{name}": _v(_TEXT)
    for name in (
        "CHUNK_SIZE",
        "COMM_SHRINK_SHARE_RESOURCES",
        "COMM_SPLIT_SHARE_RESOURCES",
        "CREATE_THREAD_CONTEXT",
        "DISABLE_GRAPH_HELPER",
        "GDR_FLUSH_DISABLE",
        "GRAPH_DUMP_FILE",
        "GRAPH_DUMP_FILE_RANK",
        "GRAPH_FILE",
        "GRAPH_HELPER_DISABLE",
        "GROUP_CUDA_STREAM",
        "IB_ASYNC_EVENTS",
        "IB_DATA_DIRECT",
        "IB_MERGE_VFS",
        "IB_ROUTABLE_FLID_GID_INDEX",
        "IB_USE_INLINE",
        "IB_WARN_RAIL_LOCAL",
        "IGNORE_DISABLED_P2P",
        "L1_SHARED_MEMORY_CARVEOUT",
        "LL128_BUFFSIZE",
        "LL128_NTHREADS",
        "LL_BUFFSIZE",
        "MAX_P2P_NCHANNELS",
        "MIN_P2P_NCHANNELS",
        "MNNVL_CROSS_CLIQUE",
        "MNNVL_RAIL_PER_HOST",
        "MNNVL_SCATTER_NETS_ENABLE",
        "NCHANNELS_PER_NET_PEER",
        "NET_DISABLE_INTRA",
        "NET_FORCE_FLUSH",
        "NET_FORCE_MERGE",
        "NET_MERGE_LEVEL",
        "NET_OPTIONAL_RECV_COMPLETION",
        "NET_OVERHEAD",
        "NO_CACHE",
        "NVB_PRECONNECT",
        "NVLSTREE_MAX_CHUNKSIZE",
        "NVLS_CHUNKSIZE",
        "NVLS_NCHANNELS",
        "NVTX_DISABLE",
        "P2P_NVL_CHUNKSIZE",
        "P2P_PCI_CHUNKSIZE",
        "P2P_READ_ENABLE",
        "P2P_USE_CUDA_MEMCPY",
        "PAT_ENABLE",
        "PROFILE_EVENT_MASK",
        "PROGRESS_APPENDOP_FREQ",
        "PROXY_APPEND_BATCH_SIZE",
        "PROXY_CPUSET",
        "PROXY_DUMP_SIGNAL",
        "REPORT_CONNECT_PROGRESS",
        "SHM_LOCALITY",
        "SHM_MEMCPY_MODE",
        "SHM_USE_CUDA_MEMCPY",
        "SINGLE_PROC_MEM_REG_ENABLE",
        "SOCKET_INLINE",
        "SOCKET_MIN_TASKSIZE",
        "SYM_CTAS",
        "SYM_KERNEL",
        "THREAD_THRESHOLDS",
        "UNPACK_DOUBLE_NCHANNELS",
        "WARN_ENABLE_DEBUG_INFO",
        "WIN_STRIDE",
        "WORK_ARGS_BYTES",
        "WORK_FIFO_BYTES",
    )
}

# Read by PyTorch's ProcessGroupNCCL, never by the library.
_TORCH: dict[str, Variable] = {
    f"TORCH_NCCL_{name}": variable
    for name, variable in {
        "ASYNC_ERROR_HANDLING": _v(_INT, place="framework", low=0, high=3),
        "AVOID_RECORD_STREAMS": _v(_BOOL, place="framework", advice="deprecated, newer PyTorch ignores it"),
        "BCAST_UNIQUEID": _v(_BOOL, place="framework"),
        "BLOCKING_WAIT": _v(_BOOL, place="framework"),
        "COORD_CHECK_MILSEC": _v(_INT, place="framework", low=1),
        "CUDA_EVENT_CACHE": _v(_BOOL, place="framework"),
        "DEBUG_INFO_PIPE_FILE": _v(_PATH, place="framework"),
        "DEBUG_INFO_TEMP_FILE": _v(_PATH, place="framework"),
        "DESYNC_DEBUG": _v(_BOOL, place="framework", debug=True, advice="it times and stores every collective"),
        "DUMP_ON_TIMEOUT": _v(_BOOL, place="framework"),
        "ENABLE_MONITORING": _v(_BOOL, place="framework"),
        "ENABLE_TIMING": _v(_BOOL, place="framework", debug=True, advice="it records an event around every collective"),
        "EXTRA_DUMP_ON_EXEC": _v(_BOOL, place="framework"),
        "HEARTBEAT_TIMEOUT_SEC": _v(_INT, place="framework", low=1),
        "HIGH_PRIORITY": _v(_BOOL, place="framework"),
        "LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN": _v(_BOOL, place="framework"),
        "NAN_CHECK": _v(_BOOL, place="framework", debug=True, advice="it reads every buffer before it is sent"),
        "NONBLOCKING_TIMEOUT": _v(_INT, place="framework", low=1),
        "PROPAGATE_ERROR": _v(_BOOL, place="framework"),
        "RANKS_PER_ROOT": _v(_INT, place="framework", low=1),
        "RETHROW_CUDA_ERRORS": _v(_BOOL, place="framework"),
        "TRACE_BUFFER_SIZE": _v(_INT, place="framework", low=0),
        "USE_COMM_NONBLOCKING": _v(_BOOL, place="framework"),
        "USE_TENSOR_REGISTER_ALLOCATOR_HOOK": _v(_BOOL, place="framework"),
        "WAIT_TIMEOUT_DUMP_MILSEC": _v(_INT, place="framework", low=0),
    }.items()
}

VARIABLES: dict[str, Variable] = {
    **_SYSTEM,
    **{name: dataclasses.replace(variable, debug=True) for name, variable in _DEBUG.items()},
    **_UNDOCUMENTED,
    **_TORCH,
}
"""Every variable the linter knows, by name."""

RENAMED: dict[str, tuple[str, str]] = {
    "NCCL_ASYNC_ERROR_HANDLING": ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "by PyTorch 2.2"),
    "NCCL_BLOCKING_WAIT": ("TORCH_NCCL_BLOCKING_WAIT", "by PyTorch 2.2"),
    "NCCL_DESYNC_DEBUG": ("TORCH_NCCL_DESYNC_DEBUG", "by PyTorch 2.2"),
    "NCCL_ENABLE_TIMING": ("TORCH_NCCL_ENABLE_TIMING", "by PyTorch 2.2"),
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "by PyTorch 2.2"),
    "NCCL_AVOID_RECORD_STREAMS": ("TORCH_NCCL_AVOID_RECORD_STREAMS", "by PyTorch 2.2"),
    "NCCL_IB_GDR_LEVEL": ("NCCL_NET_GDR_LEVEL", "by NCCL 2.4"),
    "NCCL_MAX_NRINGS": ("NCCL_MAX_CTAS", "by NCCL 2.5 and again by 2.17"),
    "NCCL_MIN_NRINGS": ("NCCL_MIN_CTAS", "by NCCL 2.5 and again by 2.17"),
}
"""Old name: new name, and who renamed it. The old PyTorch names only print a warning, so nobody notices."""

REMOVED: dict[str, str] = {
    "NCCL_IB_CUDA_SUPPORT": "NCCL removed it in 2.4; use NCCL_NET_GDR_LEVEL",
    "NCCL_SINGLE_RING_THRESHOLD": "NCCL removed it in 2.3; remove the line",
    "NCCL_LL_THRESHOLD": "NCCL removed it in 2.5; use NCCL_PROTO for an experiment",
    "NCCL_TREE_THRESHOLD": "NCCL removed it in 2.5; use NCCL_ALGO for an experiment",
    "ENABLE_NCCL_HEALTH_CHECK": "PyTorch 2.2 renamed it with TORCH_ in front and later removed it; remove the line",
    "TORCH_ENABLE_NCCL_HEALTH_CHECK": "PyTorch removed it; remove the line",
    # A common invention: PyTorch's time-out is an argument of init_process_group, no variable sets it.
    "NCCL_TIMEOUT": "neither NCCL nor PyTorch has ever read it; for RDMA time-outs use NCCL_IB_TIMEOUT",
}
"""Variables that no library reads any more, and what to do."""

_DISABLES = {
    "NCCL_IB_DISABLE": "RDMA",
    "NCCL_P2P_DISABLE": "NVLink and PCIe peer access",
    "NCCL_SHM_DISABLE": "shared memory",
}

_HCA_ENTRY = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_.-]*)(?::(?P<port>[0-9]{0,9}))?(?::(?P<rest>[-0-9:]*))?")
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+)")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?")
_BOOL_WORDS = frozenset({"0", "1", "y", "n", "yes", "no", "t", "f", "true", "false"})


def parse_version(text: str) -> Version:
    """Return (major, minor) of an NCCL version or of a package version such as V(2.27.7-1+cuda13.0)."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", text)
    if match is None:
        raise ValueError(f"NCCL version: {text[:40]!r}. Give it as 2.27 or 2.27.7.")
    return int(match[1]), int(match[2])


def hca_list(hcas: Sequence[str], port: int = 1) -> str:
    """Return the exact-match form of NCCL_IB_HCA for RDMA devices, each `mlx5_0` or `mlx5_0:2`. No device gives "".

    Exact, since NCCL takes a plain name as a prefix: `mlx5_1` would also select `mlx5_10` to `mlx5_19`.
    """
    return "=" + ",".join(h if ":" in h else f"{h}:{port}" for h in hcas) if hcas else ""


def hcas_problem(hcas: Sequence[str]) -> str | None:
    """Return why a list of RDMA devices is refused, None when each entry is one device.

    Two devices in one entry would get the port of the last one only.
    """
    for entry in hcas:
        if not entry or not _HCA_ENTRY.fullmatch(entry):
            return f"hcas: {entry!r} is not one device. Give each as an entry of its own, as mlx5_0 or mlx5_0:1."
    return None


def lint(
    variables: Mapping[str, Any],
    placement: str = "library",
    link_layer: str | None = None,
    version: Version = DEFAULT_VERSION,
) -> list[str]:
    """Return what must be refused, one sentence each with the remedy, sorted by name; an empty list is a pass.

    `placement` is where the variables are meant to stand (V(library): /etc/nccl.conf, V(framework): the unit's
    environment), `link_layer` is V(infiniband), V(ethernet) or None when it does not matter. In the unit's environment
    names of other programs (PATH, VLLM_*, CUDA_*) are none of the linter's business and pass.
    """
    if placement not in PLACEMENTS:
        return [f"placement: {placement!r}. Use {' or '.join(PLACEMENTS)}."]
    return [
        problem
        for name in sorted(variables, key=str)
        for problem in _problems(str(name), variables[name], placement, link_layer, version)
    ]


def advise(variables: Mapping[str, Any], link_layer: str | None = None) -> list[str]:
    """Return what is allowed but unwise: debugging switches left on, settings without effect, sorted by name."""
    found = []
    for name in sorted(variables, key=str):
        variable = VARIABLES.get(name)
        if variable is None:
            continue
        text = str(variables[name])
        if (special := _special_advice(name, text, link_layer)) is not None:
            found.append(f"{name}={text}: {special}.")
        elif name in _UNDOCUMENTED:
            found.append(f"{name}={text}: NCCL's user guide does not document it. Keep it only with a measurement.")
        elif variable.advice:
            found.append(f"{name}={text}: {variable.advice}.")
        elif variable.debug:
            found.append(f"{name}={text}: {_DEBUGGING}. Remove it when the experiment is over.")
    return found


def render(variables: Mapping[str, Any], header: str) -> str:
    """Return the file: the header as comments, then KEY=VALUE lines sorted by name.

    NCCL skips a line only when it starts with `#` and takes everything behind the first `=` as the value, so there is
    no quoting and no comment at the end of a line.
    """
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    return comment + "".join(f"{name}={variables[name]}\n" for name in sorted(variables))


def parse(text: str) -> dict[str, str]:
    """Return the variables of a file as NCCL reads them: the first value of a name wins, other lines are skipped."""
    found: dict[str, str] = {}
    for line in text.split("\n"):
        if not line.startswith("#") and "=" in line:
            name, value = line.split("=", 1)
            found.setdefault(name, value)
    return found


def _problems(name: str, value: Any, placement: str, link_layer: str | None, version: Version) -> list[str]:
    """Return what is wrong with one variable. A wrong name is reported alone: its value cannot be judged."""
    if name in RENAMED:
        new, by = RENAMED[name]
        return [f"{name}: renamed {by}, the old name is no library's any more. {_use(new, placement)}"]
    if name in REMOVED:
        return [f"{name}: no library reads it. {_sentence(REMOVED[name])}"]
    variable = VARIABLES.get(name)
    if variable is None:
        return _unknown_name(name, placement)
    problems = []
    if variable.place not in ("both", placement):
        problems.append(f"{name}: misplaced in {_PLACE_NAMES[placement]}, {_why_misplaced(name, variable)}")
    if variable.since is not None and variable.since > version:
        problems.append(
            f"{name}: NCCL reads it since {variable.since[0]}.{variable.since[1]}, the library here is "
            f"{version[0]}.{version[1]} and ignores it. Remove it or pin a newer NCCL."
        )
    if variable.ethernet_only and link_layer == "infiniband":
        problems.append(
            f"{name}: it chooses a RoCE address; the link layer here is InfiniBand, where NCCL finds the peer by LID."
            " Remove it, or set the link layer to ethernet if this is a RoCE fabric."
        )
    value_problem = _value_problem(name, variable, value, version)
    return [*problems, value_problem] if value_problem else problems


def _use(new: str, placement: str) -> str:
    """Return the remedy for a renamed variable: the new name, and the file when it stands in the wrong one."""
    place = VARIABLES[new].place
    where = f" in {_PLACE_NAMES[place]}, not in {_PLACE_NAMES[placement]}" if place not in ("both", placement) else ""
    return f"Use {new}{where}."


def _why_misplaced(name: str, variable: Variable) -> str:
    if name.startswith("TORCH_"):
        return f"PyTorch reads it and NCCL does not. Put it in {_PLACE_NAMES['framework']}."
    if variable.place == "framework":
        return f"it belongs to one process. Put it in {_PLACE_NAMES['framework']}."
    return f"the NCCL library reads it in every process of the node. Put it in {_PLACE_NAMES['library']}."


def _unknown_name(name: str, placement: str) -> list[str]:
    """Return the refusal of a name nobody reads. Other programs' names are legitimate in a unit's environment."""
    ours = re.match(r"(TORCH_)?NCCL", name, re.IGNORECASE) is not None
    if placement == "framework" and not ours:
        return []
    # Renamed names are candidates too: somebody who mistypes the old name needs the new one.
    close = difflib.get_close_matches(name.upper(), [*VARIABLES, *RENAMED], n=1, cutoff=0.75)
    if close:
        nearest = RENAMED[close[0]][0] if close[0] in RENAMED else close[0]
        return [f"{name}: unknown, NCCL would ignore it silently. Did you mean {nearest}?"]
    if not ours:
        return [f"{name}: not an NCCL variable. Put it in {_PLACE_NAMES['framework']} of the program that reads it."]
    return [f"{name}: unknown, NCCL would ignore it silently. Remove it."]


def _value_problem(name: str, variable: Variable, value: Any, version: Version) -> str | None:
    """Return what is wrong with the value, or None."""
    if isinstance(value, bool):
        if variable.kind == _BOOL:
            return None
        return f"{name}: {value} is a YAML boolean, and NCCL reads a word as 0. Write {int(value)}."
    if not isinstance(value, str | int | float):
        return f"{name}: a value of type {type(value).__name__}. Give one string or number."
    text = str(value)
    if problem := _text_problem(text):
        return f"{name}: {text!r} {problem}"
    if variable.kind == _FLAG and text not in ("0", "1"):
        return f"{name}: {text!r}. Use 0 or 1."
    if variable.kind == _INT:
        if not _INTEGER.fullmatch(text):
            return f"{name}: {text!r} is not a whole number and would be read as another one. Give {_range(variable)}."
        return _range_problem(name, variable, text, _integer(text))
    if variable.kind == _FLOAT:
        if not _DECIMAL.fullmatch(text):
            return f"{name}: {text!r} is not a number. Give {_range(variable)}."
        return _range_problem(name, variable, text, float(text))
    if variable.kind == _ENUM and not (text.isascii() and text.upper() in variable.values):
        return f"{name}: {text!r}. Use one of {', '.join(variable.values)}."
    if variable.kind == _BOOL and text.lower() not in _BOOL_WORDS:
        return f"{name}: {text!r}. Use 0 or 1."
    if variable.kind == _PATH and not text.startswith("/"):
        return f"{name}: {text!r} is not an absolute path. Give one."
    if variable.kind == _HCAS:
        return _hca_problem(name, text, version)
    return None


def _text_problem(text: str) -> str | None:
    """Return why NCCL's reader would not get this text as it is meant."""
    if not text:
        return "is empty. Remove the variable instead."
    # Zl and Zp are U+2028 and U+2029, Cc holds U+0085: editors and Python break a line there, NCCL does not.
    if any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for c in text):
        return "has a control character or a line break. Give one line."
    if text != text.strip():
        return "has space at an end, which NCCL takes as part of the value. Remove it."
    if text[0] in "\"'" or text[-1] in "\"'":
        return "is quoted, and NCCL takes the quotes as part of the value. Remove them."
    if " #" in text:
        return "has a comment, which NCCL takes as part of the value. Remove it."
    if len(text) > MAX_VALUE_CHARS:
        return f"has {len(text)} characters, NCCL cuts it after {MAX_VALUE_CHARS}. Shorten it."
    return None


def _integer(text: str) -> int:
    """Return the number as C's strtoll with base 0 reads it: hexadecimal with 0x, octal with a leading zero."""
    sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text.lstrip("+"))
    base = 16 if digits[:2].lower() == "0x" else 10
    return sign * int(digits, base)


def _range(variable: Variable) -> str:
    if variable.low is None:
        return "a number"
    if variable.high is None:
        return f"{variable.low:g} or more"
    return f"{variable.low:g} to {variable.high:g}"


def _range_problem(name: str, variable: Variable, text: str, number: float) -> str | None:
    if re.fullmatch(r"[+-]?0[0-9]+", text):
        return f"{name}: {text!r} has a leading zero and is read as octal. Write it without."
    if (variable.low is not None and number < variable.low) or (variable.high is not None and number > variable.high):
        extra = " 0 waits for ever on a dead peer." if name == "NCCL_IB_TIMEOUT" and number == 0 else ""
        return f"{name}: {text} is out of range.{extra} Give {_range(variable)}."
    return None


def _hca_problem(name: str, text: str, version: Version) -> str | None:
    """Return what is wrong with a list of RDMA devices. Only exact names are taken, wanted (`=`) or unwanted (`^=`)."""
    exact = text.removeprefix("^")
    if not exact.startswith("="):
        first = exact.split(",")[0].split(":")[0]
        wanted = f"{'^' if text.startswith('^') else ''}={exact}"
        return (
            f"{name}: {text!r} has no '=', so NCCL takes each name as a prefix: {first} also matches "
            f"{first}0 to {first}9 and longer names. Write {wanted}."
        )
    names = exact[1:].split(",")
    for entry in names:
        match = _HCA_ENTRY.fullmatch(entry)
        if match is None:
            return f"{name}: {entry!r} is not <device>[:<port>]. Write {name}==mlx5_0:1,mlx5_1:1."
        if match["port"] and not 1 <= int(match["port"]) <= 254:
            return f"{name}: port {match['port']} of {match['name']}. Ports are numbered from 1."
        if match["rest"] is not None and version < (2, 30):
            shorter = f"{match['name']}:{match['port'] or 1}"
            return f"{name}: {entry!r} has a rail, which NCCL reads since 2.30. Write {shorter}."
    doubled = sorted({entry for entry in names if names.count(entry) > 1})
    if doubled:
        return f"{name}: {', '.join(doubled)} more than once. Name each device once."
    if len(names) > MAX_HCAS:
        return f"{name}: {len(names)} devices, NCCL has room for {MAX_HCAS}. Name fewer."
    return None


def _special_advice(name: str, text: str, link_layer: str | None) -> str | None:
    """Return advice that depends on the value, None when there is none, also for harmless values of debug switches."""
    if name == "NCCL_DEBUG" and text.upper() in ("INFO", "TRACE", "ABORT"):
        return "it floods the journal in production. Use WARN"
    if name == "NCCL_IB_ADAPTIVE_ROUTING":
        if link_layer == "infiniband" and text == "1":
            return (
                "no effect, NCCL has it on by default on InfiniBand. Whether routing is adaptive is decided by the "
                "subnet manager and the service level (NCCL_IB_SL)"
            )
        if link_layer == "infiniband" and text == "0":
            return "it switches off sending that suits adaptive routing and costs bandwidth at scale"
        if link_layer == "ethernet" and text == "1":
            return "only right when the Ethernet fabric itself routes adaptively, otherwise it costs latency"
    if name == "NCCL_IB_AR_THRESHOLD" and text == "0":
        return "every small message pays a second one. The default is 8192"
    if name in _DISABLES and text == "1":
        return f"it takes {_DISABLES[name]} away from every job on the node"
    return None


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
