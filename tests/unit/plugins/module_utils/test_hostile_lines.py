# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""No parser takes long over hostile text: what would be tried in every way to share it out must be tried once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import (
    _chrony,
    _consul_config,
    _consul_health,
    _cpuidle,
    _gpu_driver,
    _ib_counters,
    _iblinkinfo,
    _ibping,
    _ibstat,
    _kernel_params,
    _nccl_tests,
    _numa_binding,
    _nvidia_topo,
    _nvlink_status,
    _opensm,
    _perftest,
    _rdma_congestion,
    _smi_query,
    _switch_cli,
    _xid,
)

PARSERS: tuple[Callable[[str], object], ...] = (
    _chrony.parse_tracking,
    _chrony.parse_sources,
    _consul_config.parse_version,
    _consul_health.parse,
    _cpuidle.parse,
    _gpu_driver.parse_smi,
    _ib_counters.parse_perfquery,
    _ib_counters.parse_sysfs,
    _ib_counters.parse_ibqueryerrors,
    _iblinkinfo.parse,
    _ibping.parse_statistics,
    _ibstat.parse_report,
    _kernel_params.kind,
    _kernel_params.parse_cmdline,
    _kernel_params.parse_lspci,
    _nccl_tests.parse,
    _nccl_tests.failures,
    _nccl_tests.chosen_algorithm,
    _numa_binding.parse_numa_maps,
    _numa_binding.parse,
    _nvidia_topo.parse,
    _nvlink_status.parse,
    _opensm.parse_settings,
    _perftest.parse_latency,
    _perftest.parse_bandwidth,
    _rdma_congestion.kind_of,
    _rdma_congestion.parse_qos,
    _rdma_congestion.parse_ecn,
    _rdma_congestion.contradictions,
    _smi_query.parse,
    _smi_query.parse_text,
    _switch_cli.refused,
    _switch_cli.kind_of,
    _switch_cli.parse_nvue,
    _xid.parse,
)
SIZE = 60_000
# Each took one of the parsers minutes to hours a megabyte.
REPEATED = (
    " \n",
    " ",
    "a",
    "1",
    "-",
    "\r",
    "nvidia ",
    "[  1.5] NVRM: nvidia Xid ",
    "NVRM: Xid (PCI:0000:3b:00 ",
    "recovery action changed from ",
    "GPU 0: a (UUID: a",
    "AllReduce: a",
    "/module/",
    "a 0 0[a] ==( 0X 0.0 Gbps a/ a)==>a ",
    "size count type ",
)
TAILED = ("CA:", "GPU 0000:00:00.0", "| 0", "aa", "Rank 1 Group 1 Pid 1 on a device 1 [a] a", "0.0", "Consul v1.1.1")
TEXTS = (*(part * (SIZE // len(part)) for part in REPEATED), *(head + " " * SIZE + "\0" for head in TAILED))


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: f"{parse.__module__.rpartition('.')[2]}.{parse.__name__}")
def test_a_parser_ends_soon(parse: Callable[[str], object]) -> None:
    for text in (*TEXTS, *(f"{text}\n" for text in TEXTS)):
        began = time.process_time()
        # The parsers whose contract is to raise it say so; that it takes no time is what is tested here.
        with contextlib.suppress(_chrony.ChronyError, ValueError):
            parse(text)
        # Linear work takes some 50 ms; quadratic work takes 10 s and more.
        assert time.process_time() - began < 2, text[:60]
