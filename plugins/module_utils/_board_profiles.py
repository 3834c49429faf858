# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a healthy board looks like, as data: one profile per board, never one for "H100".

Every number is a `Number` and carries the source it came from; docs/thresholds.md is the same list for people, and a
test compares the two. A number nobody published is marked `estimate`. A number that is not known at all is None, and a
gate that needs it answers `unknown`: a missing threshold is never a pass.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

NvlinkRule = Literal["all", "pairs", "optional_pairs"]
"""all: every pair of GPUs is joined; pairs: each GPU has exactly one bridged partner; optional_pairs: one or none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Number:
    """A limit or an expected value with its unit and its source."""

    value: int | float
    unit: str
    source: str
    estimate: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class NcclFloor:
    """The lowest acceptable all_reduce busbw for a GPU count and an algorithm, and what a good board reaches."""

    gpus: int
    algo: Literal["Ring", "NVLS"]
    floor: Number
    expected: Number


@dataclasses.dataclass(frozen=True, slots=True)
class HopLimit:
    """The latency limit of ib_write_lat (half the round trip, typical) by the number of switches on the way."""

    switches: int
    limit: Number


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """Expected values of one board.

    `numa_groups` lists the GPUs (by index) that share a NUMA node; GPUs of different groups share none. None: the board
    does not fix it. `unit_spans_numa` says that an inference unit may use GPUs on several NUMA nodes, because the board
    places each GPU on a node of its own. `nic_classes` are the link classes allowed between a GPU and its paired HCA.
    """

    name: str
    description: str
    products: tuple[str, ...]
    gpus: Number | None
    nvlink_rule: NvlinkRule
    nvlink_width: Number
    links_per_gpu: Number | None
    links_listed: Number
    link_speed_gbytes: Number
    nvswitch: bool
    fabric_manager: bool
    numa_groups: tuple[tuple[int, ...], ...] | None
    numa_source: str
    unit_spans_numa: bool
    nic_classes: tuple[str, ...]
    nic_source: str
    pcie_gen: Number
    pcie_width: Number
    ib_rate_gbps: Number
    ib_write_lat: tuple[HopLimit, ...]
    ib_write_bw_gbps: Number
    ibping_rtt_ms: Number
    ibping_loss: Number
    nccl: tuple[NcclFloor, ...]
    clock_offset_ms: Number
    cpu_exit_latency_us: Number
    below_median: Number
    note: str = ""
    nccl_port_gbytes: Number | None = None

    @property
    def gpu_count(self) -> int | None:
        """Number of GPUs the board has; None when the server decides (single cards)."""
        return int(self.gpus.value) if self.gpus else None

    @property
    def source(self) -> str:
        """Name of the profile as a limit's source, for check results."""
        return f"board profile {self.name}"

    def product_matches(self, product: str) -> bool:
        """Return whether a product name as nvidia-smi prints it belongs to this board."""
        return any(re.fullmatch(p, product.strip(), re.IGNORECASE) for p in self.products)

    def ib_write_lat_us(self, switches: int) -> Number | None:
        """Return the latency limit in microseconds for a path over that many switches; None: no limit is known."""
        longer = [h for h in self.ib_write_lat if h.switches >= switches]
        return min(longer, key=lambda h: h.switches).limit if longer and switches >= 0 else None

    def nccl_floor(self, gpus: int, algo: str) -> NcclFloor | None:
        """Return the floor for a GPU count and algorithm; None: no floor is known, so nothing may pass."""
        return next((f for f in self.nccl if f.gpus == gpus and f.algo.lower() == algo.lower()), None)


_LINK = Number(25.0, "GB/s", "NVLink 4: 25 GB/s per link and direction (nvidia-smi nvlink -s prints 26.562)")
_PCIE_GEN = Number(5, "", "H100 data sheet: PCIe 5.0")
_PCIE_WIDTH = Number(16, "lanes", "H100 data sheet: x16; Oracle oci-hpc checks the same width")
_NDR = Number(400, "Gb/s", "InfiniBand NDR, 4 lanes of 100 Gb/s")
_WRITE_BW = Number(
    380, "Gb/s", "Azure/azurehpc-health-checks nd96isr_h100_v5.conf; best reported 392 (NVIDIA/nccl issue 2409)"
)
_WRITE_LAT = (
    HopLimit(
        0,
        Number(
            2.0, "us", "ConnectX-7 back to back measures 1.47 typical, 1.57 p99 (perftest captures); margin 0.4", True
        ),
    ),
    HopLimit(
        1,
        Number(
            2.5,
            "us",
            "Mellanox/ngc_multinode_perf pull request 97: 2.5 for write; HDR over one switch measures 1.87 typical",
        ),
    ),
    HopLimit(
        3, Number(3.0, "us", "the one-switch limit plus 0.25 for each of two more switches (leaf, spine, leaf)", True)
    ),
)
_PING_RTT = Number(
    0.1,
    "ms",
    "wall-clock MAD round trips of 0.008 to 0.075 ms were reported (ibping captures); MADs are answered in user space",
    True,
)
_PING_LOSS = Number(0.0, "", "article: loss over 0.0001 % is investigated; 0 of a thousand is what a probe can show")
_CLOCK = Number(
    5.0,
    "ms",
    "1/40 of the 200 ms in which an IU reports kv_cache_age_ms; chrony in one rack holds well under 1 ms",
    True,
)
_EXIT = Number(
    2,
    "us",
    "Linux intel_idle tables: C1 leaves in 1 to 2 us, C1E in 2 (Sapphire Rapids) to 10, C6 in 133 to "
    "290; over 2 us is the size of a whole RDMA write",
)
_MEDIAN = Number(0.05, "", "SuperBench's rule: a node more than 5 % below the fleet median is an outlier")

_RING = Number(365, "GB/s", "NVIDIA/nccl issue 1455 (365 to 370 for 2 to 8 GPUs); 361 to 363 on H200 (ml-engineering)")
_RING_FLOOR = Number(347, "GB/s", "5 % under the Ring value of NVIDIA/nccl issue 1455")


def _nvls(gpus: int, expected: int, floor: int, floor_source: str) -> NcclFloor:
    return NcclFloor(
        gpus,
        "NVLS",
        Number(floor, "GB/s", floor_source),
        Number(expected, "GB/s", "NVIDIA/nccl issue 1455; the same ladder on H200 (ml-engineering)"),
    )


_NCCL_PORT = Number(
    43.7,
    "GB/s",
    "5 % under the lower of 46 to 48 GB/s per NDR port with Ring (NVIDIA/nccl-tests issue 290)",
    True,
)
_FIVE_UNDER = "5 % under the NVLS value of NVIDIA/nccl issue 1455"
_HGX8_NCCL = (
    *(NcclFloor(n, "Ring", _RING_FLOOR, _RING) for n in range(2, 9)),
    *(_nvls(n, 370, 351, _FIVE_UNDER) for n in range(2, 5)),
    _nvls(5, 420, 393, "5 % under the lower of two reports (414, ml-engineering)"),
    _nvls(6, 440, 414, "5 % under the lower of two reports (436, ml-engineering)"),
    _nvls(7, 460, 437, _FIVE_UNDER),
    _nvls(8, 480, 460, "Azure/azurehpc-health-checks nd96isr_h100_v5.conf, 16 GiB"),
)
_BRIDGE_NCCL = (
    NcclFloor(
        2,
        "Ring",
        Number(
            110,
            "GB/s",
            "5 % under the only public number (115, NVIDIA/nccl issue 1161, a complaint): a weak floor",
            True,
        ),
        Number(115, "GB/s", "NVIDIA/nccl issue 1161"),
    ),
)

HGX_H100_8 = Profile(
    name="hgx_h100_8",
    description="HGX or DGX H100, 8 SXM GPUs on NVSwitch",
    products=(r"NVIDIA H100 80GB HBM3", r"NVIDIA H100 SXM5( 80GB)?"),
    gpus=Number(8, "GPUs", "HGX H100 8-GPU baseboard"),
    nvlink_rule="all",
    nvlink_width=Number(
        18, "links", "NV18 in every cell: vllm issues 6746, 8691, 13855; NVIDIA/nccl issues 1264, 1357"
    ),
    links_per_gpu=Number(18, "links", "nvidia-smi nvlink -s lists 18 links per H100 SXM"),
    links_listed=Number(18, "links", "GH100 has 18 NVLinks; nvlink -s lists them all, also those no bridge uses"),
    link_speed_gbytes=_LINK,
    nvswitch=True,
    fabric_manager=True,
    numa_groups=((0, 1, 2, 3), (4, 5, 6, 7)),
    numa_source="GPU 0-3 and 4-7 hang on one socket each (matrices of NVIDIA/nccl issues 1264, 1357)",
    unit_spans_numa=False,
    nic_classes=("PIX", "PXB"),
    nic_source="each GPU shares a PCIe switch with its rail's HCA (NVIDIA/nccl issues 1357, 1617)",
    pcie_gen=_PCIE_GEN,
    pcie_width=_PCIE_WIDTH,
    ib_rate_gbps=_NDR,
    ib_write_lat=_WRITE_LAT,
    ib_write_bw_gbps=_WRITE_BW,
    ibping_rtt_ms=_PING_RTT,
    ibping_loss=_PING_LOSS,
    nccl=_HGX8_NCCL,
    clock_offset_ms=_CLOCK,
    cpu_exit_latency_us=_EXIT,
    below_median=_MEDIAN,
    nccl_port_gbytes=_NCCL_PORT,
)

HGX_H100_4 = dataclasses.replace(
    HGX_H100_8,
    name="hgx_h100_4",
    description="HGX H100, 4 SXM GPUs joined directly, no NVSwitch",
    gpus=Number(4, "GPUs", "HGX H100 4-GPU baseboard"),
    nvlink_width=Number(6, "links", "NV6 in every cell, 3 x 6 = 18 links: NVIDIA/nccl issue 1617"),
    nvswitch=False,
    fabric_manager=False,
    numa_groups=None,
    numa_source="each GPU may sit on a NUMA node of its own (3, 1, 7, 5 in NVIDIA/nccl issue 1617)",
    unit_spans_numa=True,
    nccl=(
        NcclFloor(
            4,
            "Ring",
            Number(
                330,
                "GB/s",
                "no public number for this board; 10 % under the 4-GPU Ring value of HGX-8, which "
                "has as many links per GPU",
                True,
            ),
            Number(365, "GB/s", "as HGX-8 on 4 GPUs (NVIDIA/nccl issue 1455), not verified on this board", True),
        ),
    ),
)

H100_NVL = dataclasses.replace(
    HGX_H100_8,
    name="h100_nvl",
    description="H100 NVL cards, bridged in pairs",
    products=(r"NVIDIA H100 NVL",),
    gpus=None,
    nvlink_rule="pairs",
    nvlink_width=Number(
        12, "links", "three bridges, 600 GB/s / 50 GB/s per link; one NV12 pair seen (vllm issue 19607)"
    ),
    links_per_gpu=Number(
        12, "links", "12 of 18 links by design on bridged H100 cards (Azure/azurehpc-health-checks issue 162)"
    ),
    nvswitch=False,
    fabric_manager=False,
    numa_groups=None,
    numa_source="the server decides which slot is on which socket",
    nic_classes=("PIX", "PXB", "PHB", "NODE"),
    nic_source="cards share a socket with the HCA, not always a PCIe switch",
    nccl=_BRIDGE_NCCL,
    nccl_port_gbytes=None,
    note="The number of cards is the server's, not the board's: give it with the option gpus.",
)

H100_PCIE = dataclasses.replace(
    H100_NVL,
    name="h100_pcie",
    description="H100 PCIe cards, each alone or bridged with one other",
    products=(r"NVIDIA H100 PCIe",),
    nvlink_rule="optional_pairs",
    nvlink_width=Number(
        12, "links", "three bridges, 600 GB/s / 50 GB/s per link; without a bridge there is no NV cell"
    ),
    links_per_gpu=None,
)

ARTICLE = dataclasses.replace(
    HGX_H100_8,
    name="article",
    description="HGX H100 8-GPU with the source article's own thresholds",
    ib_write_lat=(
        HopLimit(0, Number(0.8, "us", "article: IB latency between every two nodes under 0.8 us")),
        HopLimit(1, Number(0.8, "us", "article: IB latency between every two nodes under 0.8 us")),
        HopLimit(3, Number(0.8, "us", "article: IB latency between every two nodes under 0.8 us")),
    ),
    nccl=(
        NcclFloor(
            4,
            "Ring",
            Number(850, "GB/s", "article: all_reduce over the 4 GPUs of an IU"),
            Number(850, "GB/s", "article: all_reduce over the 4 GPUs of an IU"),
        ),
    ),
    note=(
        "The article's numbers as it gives them. 850 GB/s is near the 900 GB/s both directions of 18 "
        "links add up to, while busbw counts one "
        "direction and tops out near 365 (Ring) or 480 (NVLS, 8 GPUs); 0.8 us is a back-to-back best "
        "case. Good hardware fails this profile."
    ),
)

PROFILES: dict[str, Profile] = {p.name: p for p in (HGX_H100_8, HGX_H100_4, H100_NVL, H100_PCIE, ARTICLE)}
NAMES: tuple[str, ...] = tuple(PROFILES)
BOARDS: dict[str, Profile] = {n: p for n, p in PROFILES.items() if n != ARTICLE.name}
"""The profiles an inventory may name as gpu_rack_board; `article` is a set of thresholds, not a board."""


def profile(name: str) -> Profile:
    """Return the profile of a board, or raise ValueError with the names there are."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ValueError(f"board profile: {name!r} is not known. Use one of {', '.join(NAMES)}.") from None
