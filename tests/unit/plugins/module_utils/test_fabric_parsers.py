# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Latency and loss parsers: real layouts, refusals, and nothing but refusals from garbage."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._fabric_ports import parse_ibstat, parse_node_guid
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ibping import parse_statistics, round_trip_ms
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._perftest import (
    explain,
    header,
    parse_bandwidth,
    parse_latency,
    parse_rows,
    runs,
)
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text()


@pytest.mark.parametrize("name", ["perftest-4.5-ib_write_lat.txt", "perftest-4.5-ib_write_lat.json"])
def test_text_and_json_give_the_same_numbers(name: str) -> None:
    read = parse_latency(fixture(name))
    assert (read.size, read.iterations) == (2, 1000)
    assert (read.t_min_us, read.t_typical_us, read.t_avg_us, read.t_stdev_us) == (1.83, 1.91, 1.92, 0.06)
    assert (read.p99_us, read.p999_us, read.t_max_us, read.error) == (2.08, 6.21, 6.21, None)


def test_quoted_json_of_newer_releases() -> None:
    read = parse_latency('{"results": {"MsgSize": 2, "t_min": 1.8, "t_typical": 1.9, "percentile_99": 2.1}}')
    assert (read.t_typical_us, read.p99_us) == (1.9, 2.1)


def test_old_release_has_no_percentiles() -> None:
    read = parse_latency(fixture("perftest-3.0-ib_write_lat.txt"))
    assert (read.t_typical_us, read.p99_us, read.error) == (0.98, None, None)


def test_all_sizes_gives_the_smallest_message() -> None:
    head = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n"
    text = head + " 2 1000 1.80 5.00 1.90\n 4 1000 1.80 5.00 1.95\n 8388608 1000 180.0 190.0 185.0\n"
    assert [row.size for row in parse_rows(text)] == [2, 4, 8388608]
    assert parse_latency(text).t_typical_us == 1.90


def test_duration_run_has_an_average_but_no_median() -> None:
    read = parse_latency(" #bytes        #iterations       t_avg[usec]    tps average\n 2 500000 1.93 518134.71\n")
    assert (read.t_avg_us, read.t_typical_us, read.error) == (1.93, None, None)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty output"),
        ("RDMA_Write Latency Test\n", "no result row"),
        (" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n", "no result row"),
        (" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n 2 1000 1.8\n", "cut off"),
        (" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n 2 1000 1.8 2.0 nan\n", "not a number"),
        (" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n 2 1000 1.8 2.0 -1\n", "not a number"),
        (" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n 2 1000 0.00 0.00 0.00\n", "is 0"),
        (" #bytes #iterations    t_min[cycles]    t_max[cycles]  t_typical[cycles]\n 2 1000 1 2 3\n", "cycles"),
        ("Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n", "transport retries exhausted"),
        ("Couldn't connect to 10.0.0.1:18515\n Unable to open file descriptor\n", "Couldn't connect to 10.0.0.1:18515"),
        (" Port number 1 state is Down\n Couldn't set the link layer\n", "Port number 1 state is Down"),
    ],
)
def test_unreadable_is_an_error_and_no_number(text: str, part: str) -> None:
    read = parse_latency(text)
    assert part in str(read.error)
    assert read.t_typical_us is None


def test_failed_status_wins_over_a_general_line() -> None:
    assert "status 12" in str(explain("Completion with error at client\nFailed status 12: x"))


@given(st.text())
def test_latency_from_garbage_is_never_a_number(text: str) -> None:
    read = parse_latency(text)
    assert read.error is not None or "t_" in text


def test_loss_comes_from_the_counts_not_from_the_printed_percentage() -> None:
    read = parse_statistics(fixture("infiniband-diags-44.0-ibping-lossy.txt"))
    assert (read.sent, read.received) == (1000, 991)
    assert read.loss_percent == pytest.approx(0.9)


def test_nothing_received_is_full_loss_and_no_round_trip() -> None:
    text = "\n---  (Lid 17) ibping statistics ---\n10 packets transmitted, 0 received, 100% packet loss, time 9 ms\n"
    read = parse_statistics(text + "rtt min/avg/max = 0.000/0.000/0.000 ms\n")
    assert read.loss_percent == 100.0
    assert round_trip_ms(read.sent, read.received, 10.0) is None


def test_round_trip_is_the_wall_clock() -> None:
    assert round_trip_ms(1000, 1000, 0.05) == 0.05
    assert round_trip_ms(None, None, 0.05) is None


@pytest.mark.parametrize(("sent", "received", "loss"), [(3, 2, 0.0), (3, 1, 50.0), (1, 0, 100.0), (5, 5, 0.0)])
def test_packet_under_way_at_the_signal_is_not_lost(sent: int, received: int, loss: float) -> None:
    text = f"{sent} packets transmitted, {received} received, 0% packet loss, time 1 ms"
    assert parse_statistics(text, interrupted=True).loss_percent == loss


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty output"),
        ("Pong from node1 (Lid 17): time 0.020 ms\n", "no statistics line"),
        ("ibping: iberror: failed: can't resolve destination port 0x1\n", "can't resolve"),
        ("5 packets transmitted, 6 received, 0% packet loss", "cannot be"),
        ("0 packets transmitted, 0 received, 0% packet loss", "no packet"),
        ("5 packets transmitted, 5 received\n5 packets transmitted, 5 received", "2 statistics"),
    ],
)
def test_unreadable_ping_has_no_counts(text: str, part: str) -> None:
    read = parse_statistics(text)
    assert part in str(read.error)
    assert read.loss_percent is None


@given(st.text())
def test_ping_from_garbage_is_never_a_loss(text: str) -> None:
    read = parse_statistics(text)
    assert read.error is not None or "packets transmitted" in text


def test_ports_that_cannot_be_measured_say_why() -> None:
    ports = {port.hca: port for port in parse_ibstat(fixture("infiniband-diags-44.0-ibstat-mixed.txt"))}
    assert ports["mlx5_0"].guid == "0xa088c20300550001"
    assert ports["mlx5_0"].trouble("infiniband") is None
    assert ports["mlx5_1"].trouble("infiniband") == "port is Down, physical state Polling"
    assert ports["mlx5_2"].trouble("infiniband") == "link layer is Ethernet, not infiniband"
    assert ports["mlx5_2"].trouble("ethernet") is None


def test_block_cut_off_before_the_state_is_trouble() -> None:
    [port] = parse_ibstat("CA 'mlx5_0'\n\tPort 1:\n\t\tPhysical state: LinkUp\n")
    assert port.trouble("infiniband") == "ibstat prints no state for it"


def test_leaf_is_the_switch_next_to_the_port() -> None:
    text = fixture("infiniband-diags-44.0-smpquery-nodeinfo-switch.txt")
    assert parse_node_guid(text) == "0xb0cf0e0300aa0000"
    assert parse_node_guid(text.replace("Switch", "Channel Adapter")) is None
    assert parse_node_guid("smpquery: iberror: failed") is None


@given(st.text())
def test_ibstat_and_smpquery_take_any_text(text: str) -> None:
    parse_ibstat(text)
    parse_node_guid(text)


HEAD = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            HEAD + " 2 1000 1.80 5.00 1.90\nCompletion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n",
            "completion with status 12 (transport retries exhausted, the other port did not answer)",
        ),
        (HEAD + " 2 1000 1.80 5.00 1.90\n Completion with error at client\n", "Completion with error at client"),
        ("Failed status " + "9" * 5000, "completion with a status that cannot be read"),
        (HEAD + " 2 1000 1.80 5.00 1.90\n 2 1000 1.80 99.0 99.0\n", "more than one result row for 2 bytes"),
        (
            HEAD + " 2 1000 1.80 5.00 nan\n 4 1000 1.8 2.0 1.9\n",
            "t_typical is 'nan', not a number, in '2 1000 1.80 5.00 nan'",
        ),
        (HEAD + " 2 1000 1.80 5.00 1.90 77\n", "6 cells under 5 columns in '2 1000 1.80 5.00 1.90 77'"),
        (
            HEAD + " 2 1000 5.00 9.00 0.01\n",
            "t_min_us 5 is above t_typical_us 0.01, which cannot be, in '2 1000 5.00 9.00 0.01'",
        ),
        (
            HEAD + " 2 1000 1.00 1.50 1.60\n",
            "t_typical_us 1.6 is above t_max_us 1.5, which cannot be, in '2 1000 1.00 1.50 1.60'",
        ),
        (HEAD + " 2 1 1.80 5.00 1.90\n", "1 iterations are no measurement, in '2 1 1.80 5.00 1.90'"),
        (HEAD + " 2 1000 1.80 5.00 1_9\n", "t_typical is '1_9', not a number, in '2 1000 1.80 5.00 1_9'"),
        (
            HEAD + " 2 1000 1.80 5.00 \uff11.9\n",
            "t_typical is '\uff11.9', not a number, in '2 1000 1.80 5.00 \uff11.9'",
        ),
        (HEAD + f" 2 {'9' * 5000} 1.80 5.00 1.90\n", f"#iterations is '{'9' * 40}', not a number, in '2 {'9' * 118}'"),
        ("{ results: {\nMsgSize: 2,\nt_typical: 1", "the JSON report is cut off at 't_typical: 1'"),
    ],
)
def test_damaged_or_failed_run_gives_no_number(text: str, error: str) -> None:
    read = parse_latency(text)
    assert (read.error, read.t_typical_us, read.p99_us) == (error, None, None)


def test_fewer_iterations_than_asked_are_no_result() -> None:
    text = fixture("perftest-4.5-ib_write_lat.txt")
    assert parse_latency(text, 1000).t_typical_us == 1.91
    read = parse_latency(text, 1001)
    assert (read.error, read.t_typical_us) == ("1000 iterations were measured, 1001 were asked for", None)


def test_all_sizes_as_json_are_one_row_each() -> None:
    one = "{{MsgSize: {0},\nn_iterations: 1000,\nt_min: 1.80,\nt_max: 5.00,\nt_typical: {1}\n}}\n"
    rows = parse_rows(one.format(2, "1.90") + one.format(4, "1.95"))
    assert [(row.size, row.t_typical_us) for row in rows] == [(2, 1.9), (4, 1.95)]
    read = parse_latency(one.format(2, "1.90") + one.format(2, "1.95"))
    assert read.error == "more than one result row for 2 bytes"


def test_column_of_the_processor_is_a_column() -> None:
    read = parse_latency(HEAD.rstrip("\n") + "    CPU_Util[%]\n 2 1000 1.80 5.00 1.90 3.20\n")
    assert (read.t_typical_us, read.error) == (1.9, None)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("9" * 5000 + " packets transmitted, 1 received\n", "no statistics line in '" + "9" * 120 + "'"),
        (
            "5 packets transmitted, 5 received\n" + "9" * 20 + " packets transmitted, 5 received\n",
            "2 statistics lines, one was expected",
        ),
        ("ibping: " + "x" * 20000, "no statistics line in 'ibping: " + "x" * 112 + "'"),
    ],
)
def test_ping_of_any_length_has_no_counts(text: str, error: str) -> None:
    read = parse_statistics(text)
    assert (read.sent, read.received, read.error) == (None, None, error)


GBIT = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
MBYTE = GBIT.replace("Gb/sec", "MB/sec")


@pytest.mark.parametrize(
    ("text", "gbps", "peak"),
    [
        (GBIT + " 1048576    5000             392.18             392.05\t\t     0.046736\n", 392.05, 392.18),
        # 2^20 bytes, whatever the unit is called.
        (MBYTE + " 65536      5000             11030.78            11030.45            0.176487\n", 92.5301, 92.5329),
        (MBYTE.replace("MB", "MiB") + " 65536 5000 11030.78 11030.45 0.176487\n", 92.5301, 92.5329),
        # A run by time has no peak.
        (GBIT + " 65536      560845           0.00               98.02                0.186950\n", 98.02, None),
        # A warning between header and row, a service level, the load of the processor, both ports of a dual-port run.
        (
            GBIT + "Conflicting CPU frequency values detected: 1.0 != 2.0.\n 65536 5000 92.42 92.40 0.176239\n",
            92.4,
            92.42,
        ),
        (GBIT.replace("#iter", "#sl  #iter") + " 65536 3 5000 92.42 92.40 0.176239\n", 92.4, 92.42),
        (GBIT.replace("\n", "    CPU_Util[%]\n") + " 65536 5000 92.42 92.40 0.176239 3.2\n", 92.4, 92.42),
        (
            GBIT.replace("\n", "   BW Port1[Gb/sec]   MsgRate Port1[Mpps]   BW Port2[Gb/sec]   MsgRate Port2[Mpps]\n")
            + " 65536 5000 92.42 92.40 0.176239 46.20 0.088120 46.20 0.088120\n",
            92.4,
            92.42,
        ),
        # The best row of all sizes.
        (
            GBIT + " 65536 5000 371 370 0.705719\n 1048576 5000 392 391 0.046611\n 8388608 9 390 389 0.005797\n",
            391.0,
            392.0,
        ),
        # Very old releases have no message rate.
        (MBYTE.replace("   MsgRate[Mpps]", "") + " 65536 5000 1500.02 1499.85\n", 12.5817, 12.5831),
    ],
)
def test_bandwidth_of_every_layout(text: str, gbps: float, peak: float | None) -> None:
    read = parse_bandwidth(text)
    assert (read.error, read.average_gbps, read.peak_gbps) == (None, gbps, peak)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no result row in empty output"),
        (GBIT, "no result row in '#bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]'"),
        (GBIT + " 65536 5000 92.42 92.40\n", "result row is cut off: '65536 5000 92.42 92.40'"),
        (GBIT + " 65536 5000 92.42 92.40 0.1 0.1\n", "6 cells under 5 columns in '65536 5000 92.42 92.40 0.1 0.1'"),
        (GBIT + " 65536 5000 92.42 nan 0.1\n", "BW average is 'nan', not a number, in '65536 5000 92.42 nan 0.1'"),
        (
            GBIT + " 65536 5000 0.00 0.00 0.000000\n",
            "BW average is 0, which is no measurement, in '65536 5000 0.00 0.00 0.000000'",
        ),
        (
            GBIT + " 65536 5000 92.42 392.40 0.748444\n",
            "BW average 392.4 is above BW peak 92.42, which cannot be, in '65536 5000 92.42 392.40 0.748444'",
        ),
        (
            GBIT + " 65536 5000 392.42 392.40 0.176239\n",
            "BW average 392.4 and MsgRate 0.176239 contradict each other in '65536 5000 392.42 392.40 0.176239'",
        ),
        (GBIT.replace("Gb/sec", "KB/sec") + " 65536 5000 1 1 1\n", "bandwidth in KB/sec, not MB/sec or Gb/sec"),
        (
            GBIT + " 65536 5000 92.42 92.40 0.176239\n 65536 5000 92.42 92.40 0.176239\n",
            "more than one result row for 65536 bytes",
        ),
        (
            GBIT + " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n",
            "completion with status 12 (transport retries exhausted, the other port did not answer)",
        ),
        (" IB device mlx5_9 not found\n Unable to find the Infiniband/RoCE device\n", "IB device mlx5_9 not found"),
        ("{ results: {\nBW_average: 392.05,\n", "the JSON report is cut off at 'BW_average: 392.05,'"),
        ("{ results: {\nBW_average: 392.05,\n}}", "the JSON report has no #bytes"),
        (
            "{ results: {\nMsgSize: 65536,\nBW_average: 392.05,\n}}",
            "the JSON report names no unit and no MsgRate that would tell it",
        ),
    ],
)
def test_bandwidth_that_cannot_be_read_is_an_error(text: str, error: str) -> None:
    read = parse_bandwidth(text)
    assert (read.error, read.average_gbps) == (error, None)


def test_unit_of_a_json_report_is_told_by_the_message_rate() -> None:
    text = '{"results": {"MsgSize": 65536, "BW_peak": 5293.5, "BW_average": 2229.27, "MsgRate": 0.035668}}'
    assert parse_bandwidth(text).average_gbps == 18.7005
    assert parse_bandwidth(text.replace("0.035668", "4.252")).average_gbps == 2229.27
    assert "contradict" in str(parse_bandwidth(text.replace("0.035668", "0.9")).error)


@pytest.mark.parametrize(
    ("text", "verb", "what", "bidirectional"),
    [
        ("                    RDMA_Read Latency Test\n", "read", "latency", False),
        ("                    Send Bidirectional BW Test\n", "send", "bandwidth", True),
        ('"test": "RDMA_Write_BW_Test",', "write", "bandwidth", False),
        ("test: RDMA_Write Latency Test,", "write", "latency", False),
        ("$ ib_atomic_lat -d mlx5_0 node1\n", "atomic", "latency", False),
        ("RDMA_Write Post List BW Test", "write", "bandwidth", False),
        (" #bytes #iterations    BW average[Gb/sec]", None, "bandwidth", False),
        ("hello", None, None, False),
    ],
)
def test_header_says_what_was_measured(text: str, verb: str | None, what: str | None, bidirectional: bool) -> None:
    about = header(text)
    assert (about.verb, about.what, about.bidirectional) == (verb, what, bidirectional)


def test_percentiles_out_of_order_cannot_be() -> None:
    text = fixture("perftest-4.5-ib_write_lat.txt").replace("2.08 ", "1.08 ")
    assert "t_typical_us 1.91 is above p99_us 1.08, which cannot be" in str(parse_latency(text).error)


def test_server_of_a_read_has_no_table_and_is_no_run() -> None:
    client = fixture("perftest-4.5-ib_read_lat.txt")
    block = client.split(" #bytes")[0]
    waiting = "\n************************************\n* Waiting for client to connect... *\n" + "*" * 36 + "\n"
    assert [parse_latency(run).t_typical_us for run in runs(waiting + block + client)] == [3.42]
    # Without the banner it is a run that was cut off.
    assert [parse_latency(run).t_typical_us for run in runs(block + client)] == [None, 3.42]
    assert runs(client) == [client]
