# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The linter of NCCL and PyTorch variables."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _nccl_variables as nccl
from hypothesis import given
from hypothesis import strategies as st

RAILS = [f"mlx5_{i}" for i in range(8)]


def refused(name: str, value: Any, placement: str = "library", **options: Any) -> str:
    """Return the one refusal of a variable."""
    (problem,) = nccl.lint({name: value}, placement, **options)
    assert problem.startswith(f"{name}: ")
    return problem


def test_the_default_rack_passes() -> None:
    variables = {"NCCL_IB_HCA": nccl.hca_list(RAILS), "NCCL_SOCKET_IFNAME": "=eth0", "NCCL_IB_TIMEOUT": 22}
    assert nccl.lint(variables, "library", "infiniband") == []
    assert nccl.advise(variables, "infiniband") == []


def test_hca_list_is_exact_and_in_rail_order() -> None:
    assert nccl.hca_list(["mlx5_0", "mlx5_10", "mlx5_1:2"]) == "=mlx5_0:1,mlx5_10:1,mlx5_1:2"
    assert nccl.hca_list([]) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCL_DESYNC_DEBUG", "TORCH_NCCL_DESYNC_DEBUG"),
        ("NCCL_ENABLE_TIMING", "TORCH_NCCL_ENABLE_TIMING"),
        ("NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"),
    ],
)
@pytest.mark.parametrize("placement", nccl.PLACEMENTS)
def test_renamed_pytorch_variable_is_refused_with_its_name_and_place(old: str, new: str, placement: str) -> None:
    problem = refused(old, "1", placement)
    assert f"Use {new}" in problem
    assert ("in the unit's environment, not in /etc/nccl.conf" in problem) is (placement == "library")


def test_renamed_library_variable_says_who_renamed_it() -> None:
    assert refused("NCCL_IB_GDR_LEVEL", "PIX") == (
        "NCCL_IB_GDR_LEVEL: renamed by NCCL 2.4, the old name is no library's any more. Use NCCL_NET_GDR_LEVEL."
    )


@pytest.mark.parametrize("name", nccl.REMOVED)
def test_removed_variable_is_refused_everywhere(name: str) -> None:
    assert "no library reads it" in refused(name, "1", "library")
    assert "no library reads it" in refused(name, "1", "framework")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_IB_TIMOUT", "NCCL_IB_TIMEOUT"),
        ("nccl_debug", "NCCL_DEBUG"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLNG", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        # The nearest name is itself an old one: the remedy must be the new one.
        ("NCCL_ASYNC_ERROR_HANDLIN", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    ],
)
@pytest.mark.parametrize("placement", nccl.PLACEMENTS)
def test_unknown_variable_is_refused_with_the_nearest_name(typed: str, meant: str, placement: str) -> None:
    assert refused(typed, "1", placement).endswith(f"Did you mean {meant}?")


def test_unknown_variable_far_from_any_is_refused_too() -> None:
    assert refused("NCCL_XYZZY_PLUGH", "1").endswith("Remove it.")


def test_pytorch_variable_in_nccl_conf_is_refused_with_its_place() -> None:
    assert refused("TORCH_NCCL_ASYNC_ERROR_HANDLING", 3) == (
        "TORCH_NCCL_ASYNC_ERROR_HANDLING: misplaced in /etc/nccl.conf, PyTorch reads it and NCCL does not. "
        "Put it in the unit's environment."
    )
    assert nccl.lint({"TORCH_NCCL_ASYNC_ERROR_HANDLING": 3}, "framework") == []


def test_library_variable_in_the_unit_is_refused_with_its_place() -> None:
    assert refused("NCCL_IB_TIMEOUT", 22, "framework").endswith("Put it in /etc/nccl.conf.")


@pytest.mark.parametrize("placement", nccl.PLACEMENTS)
def test_variables_that_may_differ_between_two_units_stand_in_either_place(placement: str) -> None:
    assert nccl.lint({"NCCL_IB_HCA": "=mlx5_0:1", "NCCL_RAS_ADDR": "localhost:28029"}, placement) == []


def test_file_name_of_the_file_cannot_stand_in_the_file() -> None:
    assert "it belongs to one process" in refused("NCCL_CONF_FILE", "/etc/other.conf")
    assert nccl.lint({"NCCL_CONF_FILE": "/etc/other.conf"}, "framework") == []


def test_names_of_other_programs_pass_in_the_unit_only() -> None:
    others = {"PATH": "/usr/bin", "VLLM_LOGGING_LEVEL": "INFO", "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "EMPTY": ""}
    assert nccl.lint(others, "framework") == []
    assert len(nccl.lint(others, "library")) == 4


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("mlx5_1:1,mlx5_2:1", "mlx5_1 also matches mlx5_10 to mlx5_19 and longer names. Write =mlx5_1:1,mlx5_2:1."),
        ("mlx5", "Write =mlx5."),
        ("^mlx5_1", "Write ^=mlx5_1."),
        ("=mlx5_0:1,mlx5_0:1", "mlx5_0:1 more than once"),
        ("=mlx5_0:1, mlx5_1:1", "is not <device>[:<port>]"),
        ("=mlx5_0:1,", "is not <device>[:<port>]"),
        ("=", "is not <device>[:<port>]"),
        ("=mlx5_0:0", "Ports are numbered from 1"),
        ("=mlx5_0:1:0", "has a rail, which NCCL reads since 2.30. Write mlx5_0:1."),
        ("=" + ",".join(f"mlx5_{i}:1" for i in range(33)), "33 devices, NCCL has room for 32"),
    ],
)
def test_hca_lists_that_select_something_else_are_refused(value: str, says: str) -> None:
    assert says in refused("NCCL_IB_HCA", value)


@pytest.mark.parametrize("value", ["=mlx5_0:1", "=mlx5_0", "^=mlx5_4,mlx5_5", "=mlx5_bond_0:1,mlx5_10:2"])
def test_exact_hca_lists_pass(value: str) -> None:
    assert nccl.lint({"NCCL_IB_HCA": value}) == []


def test_newer_library_reads_rails_and_newer_variables() -> None:
    assert nccl.lint({"NCCL_IB_HCA": "=mlx5_0:1:0:0", "NCCL_IB_OOO_RQ": 1}, version=(2, 30)) == []
    assert "since 2.30, the library here is 2.27 and ignores it" in refused("NCCL_IB_OOO_RQ", 1)


@pytest.mark.parametrize("name", ["NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ROCE_VERSION_NUM"])
def test_roce_address_variables_are_refused_on_infiniband(name: str) -> None:
    value = "AF_INET" if "FAMILY" in name else "2"
    assert "InfiniBand" in refused(name, value, link_layer="infiniband")
    assert nccl.lint({name: value}, link_layer="ethernet") == []
    assert nccl.lint({name: value}) == []


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("NCCL_NVLS_ENABLE", True, "True is a YAML boolean, and NCCL reads a word as 0. Write 1."),
        ("NCCL_RAS_ENABLE", False, "Write 0."),
        ("NCCL_SHM_DISABLE", "yes", "Use 0 or 1."),
        ("NCCL_IB_TIMEOUT", "0", "0 waits for ever on a dead peer. Give 1 to 31."),
        ("NCCL_IB_TIMEOUT", 32, "Give 1 to 31."),
        ("NCCL_IB_RETRY_CNT", "8", "Give 0 to 7."),
        ("NCCL_IB_RETRY_CNT", "7.5", "is not a whole number"),
        ("NCCL_BUFFSIZE", "8M", "is not a whole number"),
        ("NCCL_IB_TC", "0106", "read as octal"),
        ("NCCL_DEBUG", "WARNING", "Use one of VERSION, WARN"),
        ("NCCL_NTHREADS", 300, "Use one of 64, 128, 256, 512."),
        ("NCCL_TOPO_FILE", "topo.xml", "is not an absolute path"),
        ("NCCL_ALGO", "", "is empty"),
        ("NCCL_ALGO", '"Ring"', "is quoted"),
        ("NCCL_ALGO", " Ring", "space at an end"),
        ("NCCL_ALGO", "Ring # fastest", "has a comment"),
        ("NCCL_ALGO", "Ring\nNCCL_DEBUG=INFO", "line break"),
        ("NCCL_ALGO", "x" * 1024, "NCCL cuts it after 1023"),
        ("NCCL_ALGO", ["Ring"], "a value of type list"),
        ("NCCL_ALGO", None, "a value of type NoneType"),
        ("NCCL_RAS_TIMEOUT_FACTOR", "fast", "is not a number"),
    ],
)
def test_values_nccl_would_read_otherwise_are_refused(name: str, value: Any, says: str) -> None:
    assert says in refused(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_IB_TC", "0x6a"),
        ("NCCL_IB_TC", 106),
        ("NCCL_IB_ADAPTIVE_ROUTING", -2),
        ("NCCL_DEBUG", "warn"),
        ("NCCL_ALGO", "allreduce:^tree;broadcast:ring"),
        ("NCCL_NVLS_CHUNKSIZE", "524288"),
        ("NCCL_RAS_TIMEOUT_FACTOR", 1.5),
    ],
)
def test_good_values_pass(name: str, value: Any) -> None:
    assert nccl.lint({name: value}) == []


@pytest.mark.parametrize("value", [True, "1", "true", "no", 0])
def test_pytorch_takes_words_for_switches(value: Any) -> None:
    assert nccl.lint({"TORCH_NCCL_BLOCKING_WAIT": value}, "framework") == []


@pytest.mark.parametrize(
    ("variables", "link_layer", "says"),
    [
        ({"NCCL_DEBUG": "INFO"}, None, "floods the journal"),
        ({"NCCL_IB_ADAPTIVE_ROUTING": 1}, "infiniband", "no effect"),
        ({"NCCL_IB_ADAPTIVE_ROUTING": 0}, "infiniband", "switches off"),
        ({"NCCL_IB_ADAPTIVE_ROUTING": 1}, "ethernet", "only right when the Ethernet fabric itself routes adaptively"),
        ({"NCCL_IB_AR_THRESHOLD": 0}, None, "every small message"),
        ({"NCCL_P2P_DISABLE": 1}, None, "takes NVLink and PCIe peer access away"),
        ({"NCCL_ALGO": "Ring"}, None, "lists it under Debugging"),
        ({"NCCL_MAX_NCHANNELS": 8}, None, "use NCCL_MAX_CTAS"),
        ({"NCCL_NVLS_CHUNKSIZE": 1}, None, "does not document it"),
        ({"NCCL_TOPO_DUMP_FILE": "/tmp/x"}, None, "every process writes it"),
    ],
)
def test_unwise_settings_are_allowed_with_a_warning(
    variables: dict[str, Any], link_layer: str | None, says: str
) -> None:
    assert nccl.lint(variables, "library", link_layer) == []
    (advice,) = nccl.advise(variables, link_layer)
    assert says in advice


def test_placement_has_two_values() -> None:
    assert nccl.lint({}, "system") == ["placement: 'system'. Use library or framework."]


@pytest.mark.parametrize(("text", "version"), [("2.27", (2, 27)), ("2.27.7-1+cuda13.0", (2, 27)), ("2.30.4", (2, 30))])
def test_version_of_a_package(text: str, version: tuple[int, int]) -> None:
    assert nccl.parse_version(text) == version


def test_version_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Give it as 2\.27"):
        nccl.parse_version("latest")


def test_file_is_sorted_and_starts_with_comments() -> None:
    text = nccl.render({"NCCL_NET": "IB", "NCCL_IB_HCA": "=mlx5_0:1"}, "one\ntwo")
    assert text == "# one\n# two\nNCCL_IB_HCA==mlx5_0:1\nNCCL_NET=IB\n"


def test_no_name_is_both_known_and_gone() -> None:
    assert not set(nccl.VARIABLES) & (set(nccl.RENAMED) | set(nccl.REMOVED))
    assert {new for new, _unused in nccl.RENAMED.values()} <= set(nccl.VARIABLES)


# The first draw of any text builds Unicode tables, which is slow on a loaded machine and says nothing of the test.
@given(st.dictionaries(st.sampled_from(sorted(nccl.VARIABLES)), st.text() | st.integers() | st.booleans()))
def test_what_passes_is_read_back_as_it_was_written(variables: dict[str, Any]) -> None:
    if nccl.lint(variables) == []:
        assert nccl.parse(nccl.render(variables, "header")) == {k: str(v) for k, v in variables.items()}


@given(st.text(), st.text(), st.sampled_from(nccl.PLACEMENTS))
def test_linter_answers_on_any_text(name: str, value: str, placement: str) -> None:
    assert all(isinstance(p, str) for p in nccl.lint({name: value}, placement))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("NCCL_IB_TC", "\uff11\uff12", "is not a whole number and would be read as another one. Give -1 to 255."),
        ("NCCL_IB_TC", "\u0661", "is not a whole number and would be read as another one. Give -1 to 255."),
        ("NCCL_RAS_TIMEOUT_FACTOR", "nan", "is not a number. Give 0 or more."),
        ("NCCL_RAS_TIMEOUT_FACTOR", "inf", "is not a number. Give 0 or more."),
        ("NCCL_RAS_TIMEOUT_FACTOR", "\uff11", "is not a number. Give 0 or more."),
        ("NCCL_NET", "IB\u2028NCCL_IB_DISABLE=1", "has a control character or a line break. Give one line."),
        ("NCCL_NET", "IB\u2029x", "has a control character or a line break. Give one line."),
        ("NCCL_NET", "IB\x85x", "has a control character or a line break. Give one line."),
        ("NCCL_NET", "IB\x7fx", "has a control character or a line break. Give one line."),
    ],
)
def test_only_plain_digits_and_one_line(name: str, value: str, problem: str) -> None:
    assert nccl.lint({name: value}) == [f"{name}: {value!r} {problem}"]


def test_word_that_is_one_only_in_upper_case_is_refused() -> None:
    assert nccl.lint({"NCCL_DEBUG": "\u0131nfo"}) == [
        "NCCL_DEBUG: '\u0131nfo'. Use one of VERSION, WARN, INFO, ABORT, TRACE."
    ]


def test_port_is_in_plain_digits() -> None:
    assert nccl.lint({"NCCL_IB_HCA": "=mlx5_0:\uff11"}) == [
        "NCCL_IB_HCA: 'mlx5_0:\uff11' is not <device>[:<port>]. Write NCCL_IB_HCA==mlx5_0:1,mlx5_1:1."
    ]


@pytest.mark.parametrize("text", ["\uff12.27", "9" * 5000, "2." + "9" * 5000])
def test_version_in_other_digits_or_without_end_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"Give it as 2\.27"):
        nccl.parse_version(text)
