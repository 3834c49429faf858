# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one reader of nvidia-smi -q: text of drivers 460 to 595, XML, csv."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _smi_query
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._smi_query import Query, parse

FIXTURES = Path(__file__).parents[2] / "fixtures"
COLUMNS = (FIXTURES / "nvidia-smi-580.95.05-query-gpu-health-hgx8.csv").read_text().splitlines()[0].split(", ")


def read(name: str) -> str:
    return (FIXTURES / name).read_text()


def query(name: str) -> Query:
    return parse(read(name))


@pytest.mark.parametrize(
    ("name", "driver", "gpus", "first", "product"),
    [
        ("nvidia-smi-460.91.03-q-a100x2.txt", "460.91.03", 2, "00000000:19:00.0", "A100-SXM4-40GB"),
        ("nvidia-smi-470.82.01-q-a100x2.txt", "470.82.01", 2, "00000000:19:00.0", "NVIDIA A100-SXM4-40GB"),
        ("nvidia-smi-535.129.03-q-hgx4.txt", "535.129.03", 4, "00000000:19:00.0", "NVIDIA H100 80GB HBM3"),
        ("nvidia-smi-550.90.07-q-hgx4.txt", "550.90.07", 4, "00000000:19:00.0", "NVIDIA H100 80GB HBM3"),
        ("nvidia-smi-565.57.01-q-nvl2.txt", "565.57.01", 2, "00000000:2A:00.0", "NVIDIA H100 NVL"),
        ("nvidia-smi-570.133.20-q-hgx4.txt", "570.133.20", 4, "00000000:19:00.0", "NVIDIA H100 80GB HBM3"),
        ("nvidia-smi-580.95.05-q-hgx8.txt", "580.95.05", 8, "00000000:1B:00.0", "NVIDIA H100 80GB HBM3"),
        ("nvidia-smi-590.48.01-q-hgx8.txt", "590.48.01", 8, "00000000:1B:00.0", "NVIDIA H100 80GB HBM3"),
        ("nvidia-smi-580.95.05-q-x-hgx4.xml", "580.95.05", 4, "00000000:19:00.0", "NVIDIA H100 80GB HBM3"),
        ("nvidia-smi-580.95.05-query-gpu-health-hgx8.csv", "580.95.05", 8, "00000000:1B:00.0", "NVIDIA H100 80GB HBM3"),
    ],
)
def test_every_form_and_driver_is_read(name: str, driver: str, gpus: int, first: str, product: str) -> None:
    got = query(name)
    assert (got.driver, len(got.gpus), got.problems) == (driver, gpus, ())
    assert got.attached == (None if got.form == "csv" else gpus)
    assert (got.gpus[0].bus_id, got.gpus[0].get("Product Name")) == (first, product)
    assert got.whole is (got.form != "csv")


NAMES = (
    "MIG Mode/Current",
    "VBIOS Version",
    "GPU Recovery Action",
    "PCI/GPU Link Info/PCIe Generation/Host Max",
    "Clocks Event Reasons/HW Power Brake Slowdown",
    "Clocks Event Reasons/Idle",
    "ECC Errors/Aggregate/SRAM Uncorrectable SEC-DED",
    "ECC Errors/Volatile/DRAM Uncorrectable",
    "ECC Errors/TPC Repair Pending",
    "Remapped Rows/Remapping Failure Occurred",
    "Remapped Rows/Bank Remap Availability Histogram/Max",
    "Temperature/GPU Current Temp",
    "Temperature/GPU T.Limit Temp",
    "Fabric/State",
    "Fabric/Health/Bandwidth",
)


@pytest.mark.parametrize("name", NAMES)
def test_xml_says_what_the_text_says(name: str) -> None:
    text, xml = query("nvidia-smi-570.133.20-q-hgx4.txt"), query("nvidia-smi-580.95.05-q-x-hgx4.xml")
    if name == "ECC Errors/TPC Repair Pending":
        text = query("nvidia-smi-590.48.01-q-hgx8.txt")  # 570 does not have it
    assert xml.gpus[0].get(name) is not None
    assert xml.gpus[0].get(name) == text.gpus[0].get(name)


def test_the_older_name_of_clocks_event_reasons_is_the_same_section() -> None:
    old = query("nvidia-smi-460.91.03-q-a100x2.txt").gpus[0]
    assert old.section("Clocks Event Reasons")["HW Thermal Slowdown"] == "Not Active"
    assert "Clocks Throttle Reasons/HW Slowdown" not in old.fields


def test_a_capture_that_was_indented_as_a_whole_reads_alike() -> None:
    text = read("nvidia-smi-590.48.01-q-hgx8.txt")
    assert parse("".join(f"    {line}" for line in text.splitlines(keepends=True))) == parse(text)
    assert parse("\ufeff" + text.replace("\n", "\r\n")) == parse(text)


def test_csv_without_header_needs_its_columns() -> None:
    text = read("nvidia-smi-525.85.12-query-gpu-health-hgx8-noheader.csv")
    assert parse(text).gpus == ()
    assert "no csv with a header" in parse(text).problems[0].text
    got = parse(text, COLUMNS)
    assert (len(got.gpus), got.driver, got.problems) == (8, "525.85.12", ())
    assert got.gpus[7].get("Clocks Event Reasons/HW Slowdown") == "Not Active"


PROBLEMS = {
    "csv row cut off": (
        "index, name, ecc.mode.current\n0, NVIDIA H100 80GB HBM3, Enabled\n1, NVIDIA",
        "2 cells for 3 columns, it may be cut off: 1, NVIDIA",
    ),
    "csv with two headers": (
        "index, pci.bus_id\n0, 00000000:1B:00.0\nindex, name\n0, NVIDIA H100 80GB HBM3\n",
        "a second header line: index, name",
    ),
    "two drivers": ("index, driver_version\n0, 580.95.05\n1, 580.82.07\n", "driver_version or count differs"),
    "no devices": ("No devices were found\n", "No devices were found"),
    "empty": ("", "the output is empty"),
    "garbage": ("\x7fELF garbage, more, and more\n", "no report of nvidia-smi -q"),
    "xml cut off": (
        '<?xml version="1.0" ?><nvidia_smi_log><gpu id="00000000:1B:00.0"><uuid>GPU-1</uuid>',
        "the XML cannot be read, it may be cut off",
    ),
    "another xml": ("<?xml version='1.0'?><rss/>", "not an nvidia_smi_log"),
    "entities": (
        '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'
        "<nvidia_smi_log><driver_version>&b;</driver_version></nvidia_smi_log>",
        "the XML declares entities",
    ),
    "one GPU twice": (
        "Attached GPUs : 2\nGPU 00000000:1B:00.0\n    Product Name : X\nGPU 00000000:1b:00.0\n    Product Name : X\n",
        "GPU 00000000:1b:00.0 is described twice",
    ),
    "a section twice": (
        "Attached GPUs : 1\nGPU 00000000:1B:00.0\n    Remapped Rows\n        Pending : No\n"
        "    Remapped Rows\n        Pending : Yes\n",
        "'Remapped Rows/Pending' is there twice for GPU 00000000:1B:00.0",
    ),
}


@pytest.mark.parametrize(("text", "reason"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_what_cannot_be_trusted_is_a_problem_with_its_line(text: str, reason: str) -> None:
    problems = [problem.text for problem in parse(text).problems]
    assert any(reason in problem for problem in problems), problems


def test_a_doctype_that_only_names_the_dtd_is_read() -> None:
    assert "<!DOCTYPE nvidia_smi_log SYSTEM" in read("nvidia-smi-580.95.05-q-x-hgx4.xml")


def test_lost_gpu_and_corrupt_inforom_are_told_apart_from_other_errors() -> None:
    text = read("nvidia-smi-550.90.07-q-hgx4.txt")
    text += "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover it\n"
    text += "WARNING: infoROM is corrupted at gpu 0000:19:00.0\nUnable to determine the device handle: Unknown Error\n"
    assert [problem.kind for problem in parse(text).problems] == ["lost", "inforom", "error"]


@pytest.mark.parametrize(
    ("value", "unit", "wanted"),
    [
        ("16x", "x", 16),
        ("16", "x", 16),
        ("45 C", "C", 45),
        ("-2 C", "C", -2),
        ("0 bank(s)", "bank(s)", 0),
        ("[N/A]", "", None),
        ("N/A", "", None),
        ("ERR!", "", None),
        ("1.5", "", None),
        ("²", "", None),
        ("9" * 40, "", None),
        (None, "", None),
    ],
)
def test_number(value: str | None, unit: str, wanted: int | None) -> None:
    assert _smi_query.number(value, unit) == wanted


@pytest.mark.parametrize(
    ("value", "wanted", "broken", "reset"),
    [
        ("[N/A]", None, False, False),
        ("Requested functionality has been deprecated", None, False, False),
        ("[Requested functionality has been deprecated]", None, False, False),
        ("[Not Supported]", None, False, False),
        ("Enabled", "Enabled", False, False),
        ("ERR!", "ERR!", True, False),
        ("[Unknown Error]", "Unknown Error", True, False),
        ("[GPU requires reset]", "GPU requires reset", True, True),
        ("GPU is lost", "GPU is lost", True, True),
        ("[Insufficient Permissions]", "Insufficient Permissions", True, False),
    ],
)
def test_words_in_place_of_a_value(value: str, wanted: str | None, broken: bool, reset: bool) -> None:
    assert _smi_query.printed(value) == wanted
    assert _smi_query.broken(value) is broken
    assert _smi_query.needs_reset(value) is reset


TABLE = """Mon Nov 30 12:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   28C    P0             68W /  700W |       0MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A100-SXM...             Off |   00000000:43:00.0 Off |                  Off |
| N/A   31C    P0             71W /  700W |       0MiB /  81559MiB |      0%      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|=========================================================================================|
|    1   N/A  N/A              2573      G   /usr/lib/xorg/Xorg                      4MiB |
+-----------------------------------------------------------------------------------------+
"""


def test_the_table_is_read_for_what_is_in_it() -> None:
    got = parse(TABLE)
    assert (got.driver, got.problems, [gpu.bus_id for gpu in got.gpus]) == (
        *("550.90.07", ()),
        ["00000000:1B:00.0", "00000000:43:00.0"],
    )
    assert dict(got.gpus[0].fields) == {
        "Product Name": "NVIDIA H100 80GB HBM3",
        "Persistence Mode": "Enabled",
        "ECC Mode/Current": "Enabled",
        "ECC Errors/Volatile/Total Uncorrectable": "0",
        "Temperature/GPU Current Temp": "28 C",
        "Performance State": "P0",
        "MIG Mode/Current": "Disabled",
    }
    assert (got.gpus[1].get("Product Name"), got.gpus[1].get("ECC Mode/Current")) == (None, "Disabled")
    assert (got.gpus[1].get("Persistence Mode"), got.gpus[1].get("MIG Mode/Current")) == ("Disabled", "Enabled")


def test_a_table_that_is_cut_off_or_has_an_error_in_it_says_so() -> None:
    assert parse(TABLE[:1200]).problems[-1].text == "the table ends before the processes, it is cut off"
    lost = TABLE.replace("|   1  NVIDIA A100-SXM...             Off |", "|   1  ERR!                       ERR!    |")
    assert "a row of the table cannot be read" in parse(lost).problems[0].text


def test_driver_610_names_its_version_and_margin_anew() -> None:
    text = (
        "Driver Version                                         : 610.57.04 [Deprecated; will be removed]\n"
        "KMD Version                                            : 610.57.04\n"
        "Attached GPUs                                          : 1\n"
        "GPU 00000000:01:00.0\n"
        "    Temperature\n"
        "        GPU Current Temp                               : 41 C\n"
        "        GPU Current T.Limit Temp                       : 46 C\n"
    )
    read = parse(text)
    assert (read.driver, read.branch) == ("610.57.04", 610)
    assert read.gpus[0].get("Temperature/GPU T.Limit Temp") == "46 C"
    assert parse(text.split("\n", 1)[1]).driver == "610.57.04"
