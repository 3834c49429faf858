# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judgement of a GPU topology against a board profile, and the inference units that follow from it. Pure functions."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import Profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvidia_topo import (
    PCIE_CLASSES,
    Topology,
    format_set,
    gpu_index,
    number_set,
    width,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Value, Verdict, compare, unknown

GATE = "nvlink_topology"
CHECKS: dict[str, str] = {
    "nvlink_topology.output": "Whether nvidia-smi topo -m printed one whole matrix that can be read.",
    "nvlink_topology.gpus": "Number of GPUs in the matrix, held against the option gpus or the board profile.",
    "nvlink_topology.matrix": (
        "Connection of every pair of GPUs, held against the exact one of the board profile or option width; without "
        "either all GPUs must have as many NVLinks, the same in both cells of a pair."
    ),
    "nvlink_topology.nic_affinity": (
        "Connection of each GPU to the HCA of its rail, held against the connections the board profile accepts."
    ),
    "nvlink_topology.numa": "NUMA node of each GPU by the matrix, held against the grouping of the board profile.",
}
_RESEAT = (
    "Reset the GPUs or power-cycle the node; if it comes back, reseat or replace the board and look for "
    "XID 74 in the kernel log."
)
_READ_AGAIN = "Run nvidia-smi topo -m by hand, or capture it to a file without a terminal, and judge again."
_RENUMBERED = "the driver renumbers the GPUs when one is missing, so their places on the board are not known"


# Reading problems


def judge_output(topology: Topology) -> list[Check]:
    """Return an `unknown` for every line that could not be read. Affinity cells are the NUMA rule's business."""
    return [
        unknown("nvlink_topology.output", p.subject, str(p), _READ_AGAIN)
        for p in topology.problems
        if not p.subject.endswith(" affinity")
    ]


def judge_count(topology: Topology, profile: Profile | None, gpus: int | None) -> Check:
    """Hold the number of GPUs against the option or the board; a board without a fixed number can only warn."""
    found = len(topology.gpus)
    board = profile.gpu_count if profile else None
    expected = gpus if gpus is not None else board
    source = "option gpus" if gpus is not None else profile.source if profile else ""
    if expected is None and profile is None:
        reason = "GPUs in the matrix; neither a board nor option gpus says how many belong there"
        if not found:
            return unknown("nvlink_topology.gpus", "node", "no GPU is in the matrix", _READ_AGAIN)
        return Check("nvlink_topology.gpus", "node", "pass", reason, found, None, "GPUs")
    if expected is None and profile is not None:
        reason = f"{profile.name} does not fix the number of GPUs, so a missing card would not be noticed"
        if not found:
            return unknown("nvlink_topology.gpus", "node", reason, "Set gpus to the number of cards in the server.")
        return Check(
            "nvlink_topology.gpus",
            "node",
            "warn",
            reason,
            found,
            None,
            "GPUs",
            "",
            "Set gpus to the number of cards in the server.",
        )
    return compare(
        "nvlink_topology.gpus",
        "node",
        found,
        expected,
        ok=found == expected,
        unit="GPUs",
        limit_source=source,
        reason=f"{found} GPUs are in the matrix" + ("" if found == expected else f", {expected} belong there"),
        remedy="Look for a GPU that fell off the bus (XID 79, lspci) and power-cycle the node.",
    )


# NVLink


def judge_matrix(topology: Topology, profile: Profile) -> list[Check]:
    """Hold every NVLink cell against the profile: one check for each bad pair, or one pass for all cells."""
    gpus = topology.gpus
    if len(gpus) < 2:
        if profile.nvlink_rule == "optional_pairs" and len(gpus) == 1:
            return [_matrix_pass("1 GPU", "no other GPU to be joined with", profile)]
        return [
            unknown(
                "nvlink_topology.matrix",
                "node",
                f"{len(gpus)} GPUs in the matrix: there is no pair to judge",
                _READ_AGAIN,
            )
        ]
    pairs = list(itertools.combinations(gpus, 2))
    checks = (
        _judge_all(topology, profile, pairs) if profile.nvlink_rule == "all" else _judge_pairs(topology, profile, pairs)
    )
    if checks:
        return checks
    cells = 2 * len(pairs)
    if profile.nvlink_rule == "all":
        return [
            _matrix_pass(
                f"{cells} cells NV{profile.nvlink_width.value}", "every pair of GPUs is joined at full width", profile
            )
        ]
    joined = sum(1 for pair in pairs if width(topology.cells.get(pair)))
    return [
        _matrix_pass(
            f"{joined} pairs NV{profile.nvlink_width.value}",
            f"{cells} cells read, bridges as the board has them",
            profile,
        )
    ]


def _matrix_pass(value: str, reason: str, profile: Profile) -> Check:
    return Check(
        "nvlink_topology.matrix", "all pairs", "pass", reason, value, _matrix_limit(profile), "", profile.source
    )


def _matrix_limit(profile: Profile) -> str:
    word = {"all": "in every pair", "pairs": "with one partner each", "optional_pairs": "with one partner or none"}[
        profile.nvlink_rule
    ]
    return f"NV{profile.nvlink_width.value} {word}"


def _both(topology: Topology, a: str, b: str) -> tuple[str | None, str | None]:
    return topology.cells.get((a, b)), topology.cells.get((b, a))


def _judge_all(topology: Topology, profile: Profile, pairs: Sequence[tuple[str, str]]) -> list[Check]:
    want = f"NV{profile.nvlink_width.value}"
    checks = []
    for a, b in pairs:
        cells = _both(topology, a, b)
        if cells == (want, want):
            continue
        checks.append(_bad_pair(a, b, cells, want, profile))
    return checks


def _bad_pair(a: str, b: str, cells: tuple[str | None, str | None], want: str, profile: Profile) -> Check:
    subject = f"{a}-{b}"
    source = profile.source
    bad = [c for c in cells if c is not None and c != want]
    if not bad:
        return unknown(
            "nvlink_topology.matrix", subject, "a cell of this pair could not be read", _READ_AGAIN, want, source
        )
    value = bad[0] if cells[0] == cells[1] or None in cells else f"{cells[0]} one way, {cells[1]} the other"
    lanes = [width(c) for c in bad]
    if cells[0] != cells[1] and None not in cells:
        reason = "the two cells of the pair differ, so the matrix is not symmetric"
    elif not lanes[0]:
        reason = f"the pair is joined by {bad[0]}, not by NVLink"
    elif lanes[0] < profile.nvlink_width.value:
        reason = f"{profile.nvlink_width.value - lanes[0]} of {profile.nvlink_width.value} links are missing"
    else:
        reason = f"more links than this board has: {profile.name} is the wrong profile for it"
    return Check("nvlink_topology.matrix", subject, "fail", reason, value, want, "", source, _RESEAT)


def _judge_pairs(topology: Topology, profile: Profile, pairs: Sequence[tuple[str, str]]) -> list[Check]:
    """Judge bridged cards: full width where there is a bridge, and at most (or exactly) one partner for each card."""
    want = f"NV{profile.nvlink_width.value}"
    partners: dict[str, list[str]] = {g: [] for g in topology.gpus}
    unreadable: set[str] = set()
    checks: list[Check] = []
    for a, b in pairs:
        cells = _both(topology, a, b)
        if None in cells:
            checks.append(_bad_pair(a, b, (None, None), want, profile))
            unreadable.update((a, b))
        elif cells[0] != cells[1] or (width(cells[0]) and cells[0] != want):
            checks.append(_bad_pair(a, b, cells, want, profile))
        if any(width(c) for c in cells):
            partners[a].append(b)
            partners[b].append(a)
    source = profile.source
    alone = [g for g, others in partners.items() if not others and g not in unreadable]
    for gpu, others in partners.items():
        if len(others) > 1:
            reason = f"bridged with {', '.join(others)}: a card has one bridge partner"
            checks.append(
                Check(
                    "nvlink_topology.matrix",
                    gpu,
                    "fail",
                    reason,
                    f"{len(others)} partners",
                    _matrix_limit(profile),
                    "",
                    source,
                    _RESEAT,
                )
            )
    for gpu in alone:
        if profile.nvlink_rule == "pairs":
            reason, remedy = (
                "no other card is joined with it by NVLink",
                "Seat its NVLink bridges; compare with nvidia-smi nvlink -s.",
            )
            checks.append(
                Check(
                    "nvlink_topology.matrix",
                    gpu,
                    "fail",
                    reason,
                    "0 partners",
                    _matrix_limit(profile),
                    "",
                    source,
                    remedy,
                )
            )
        elif len(alone) < len(partners):
            reason, remedy = (
                "it has no bridge while other cards of the node have one",
                "Check whether its bridge was left out on purpose.",
            )
            checks.append(
                Check(
                    "nvlink_topology.matrix",
                    gpu,
                    "warn",
                    reason,
                    "0 partners",
                    _matrix_limit(profile),
                    "",
                    source,
                    remedy,
                )
            )
    return checks


def judge_options(topology: Topology, links: int) -> list[Check]:
    """Hold every pair of GPUs against option width: that many links between every two of them, or none at all for 0."""
    pairs = list(itertools.combinations(topology.gpus, 2))
    limit = f"NV{links} in every pair" if links else "no NVLink"
    if not pairs:
        if len(topology.gpus) == 1 and not links:
            return [_alike("pass", "1 GPU", "no other GPU to be joined with", "", limit, _WIDTH)]
        reason = f"{len(topology.gpus)} GPUs in the matrix: there is no pair to judge"
        return [unknown("nvlink_topology.matrix", "node", reason, _READ_AGAIN, limit, _WIDTH)]
    checks: list[Check] = []
    for a, b in pairs:
        cells = _both(topology, a, b)
        subject = f"{a}-{b}"
        if None in cells:
            reason = "a cell of this pair could not be read"
            checks.append(unknown("nvlink_topology.matrix", subject, reason, _READ_AGAIN, limit, _WIDTH))
        elif cells[0] != cells[1]:
            checks.append(_differs(a, b, cells, limit, _WIDTH))
        elif width(cells[0]) != links:
            found = width(cells[0])
            reason = f"{found} links join the pair" if found else f"the pair is joined by {cells[0]}, not by NVLink"
            checks.append(_alike("fail", str(cells[0]), reason, _RESEAT, limit, _WIDTH, subject))
    value = f"{2 * len(pairs)} cells {f'NV{links}' if links else 'without NVLink'}"
    return checks or [_alike("pass", value, "every pair of GPUs is as the option says", "", limit, _WIDTH)]


_WIDTH = "option width"
_OTHERS = "the other GPUs of the node"


def judge_alike(topology: Topology) -> list[Check]:
    """Judge the matrix of a board no profile describes by itself: every GPU has as many NVLinks as the others.

    That holds for boards with NVSwitch, for directly joined ones of mixed width such as a DGX-1, for bridged pairs, and
    for GPUs without NVLink. A lost link takes one from two GPUs. A whole board that is down the same way does not show.
    """
    gpus = topology.gpus
    pairs = list(itertools.combinations(gpus, 2))
    if not pairs:
        if len(gpus) == 1:
            return [_alike("pass", "1 GPU", "no other GPU to be joined with", "", None, _OTHERS)]
        return [unknown("nvlink_topology.matrix", "node", "no GPU is in the matrix", _READ_AGAIN)]
    checks: list[Check] = []
    limit = "as many NVLinks as the others"
    for a, b in pairs:
        cells = _both(topology, a, b)
        if None in cells:
            reason = "a cell of this pair could not be read"
            checks.append(unknown("nvlink_topology.matrix", f"{a}-{b}", reason, _READ_AGAIN, limit, _OTHERS))
        elif cells[0] != cells[1]:
            checks.append(_differs(a, b, cells, "the same both ways", _OTHERS))
    if checks:
        return checks
    sums = {g: sum(width(topology.cells.get((g, other))) for other in gpus if other != g) for g in gpus}
    partners = {g: sum(1 for other in gpus if other != g and width(topology.cells.get((g, other)))) for g in gpus}
    most = max(set(sums.values()), key=lambda n: (list(sums.values()).count(n), n))
    odd = [g for g in gpus if sums[g] != most]
    if not odd:
        kinds = Counter(str(topology.cells[pair]) for pair in pairs)
        value = ", ".join(f"{n} pairs {cell}" for cell, n in sorted(kinds.items()))
        reason = f"each GPU has {most} NVLinks to the others" if most else "no GPU has an NVLink"
        reason += "; no board says how many belong there"
        return [_alike("pass", value, reason, "", limit, _OTHERS)]
    # GPUs in one net must all be in it; bridged cards may have a neighbour without a bridge or of another model.
    net = max(partners.values()) > 1
    for gpu in odd:
        reason = f"{sums[gpu]} NVLinks to {partners[gpu]} GPUs, most GPUs of the node have {most}"
        if net or sums[gpu]:
            checks.append(_alike("fail", f"{sums[gpu]} NVLinks", reason, _RESEAT, f"{most}", _OTHERS, gpu))
        else:
            reason += "; no board says whether it should have a bridge"
            checks.append(_alike("warn", "0 NVLinks", reason, "Give a profile.", f"{most}", _OTHERS, gpu))
    return checks


def _alike(
    verdict: Verdict, value: str, reason: str, remedy: str, limit: str | None, source: str, subject: str = "all pairs"
) -> Check:
    return Check("nvlink_topology.matrix", subject, verdict, reason, value, limit, "", source, remedy)


def _differs(a: str, b: str, cells: tuple[str | None, str | None], limit: str, source: str) -> Check:
    reason = "the two cells of the pair differ, so the matrix is not symmetric"
    value = f"{cells[0]} one way, {cells[1]} the other"
    return _alike("fail", value, reason, _RESEAT, limit, source, f"{a}-{b}")


# NIC affinity


def paired_hcas(gpus: Sequence[str], hcas: Sequence[str]) -> dict[str, str] | None:
    """Return the HCA of each GPU's rail, HCAs in rail order; None when the rails cannot be shared out evenly."""
    if not gpus or not hcas or (len(gpus) % len(hcas) and len(hcas) % len(gpus)):
        return None
    return {g: hcas[i * len(hcas) // len(gpus)] for i, g in enumerate(gpus)}


_NEAR = ("PIX", "PXB")


def judge_nics(
    topology: Topology, profile: Profile | None, hcas: Sequence[str], gpus: int | None = None
) -> list[Check]:
    """Hold the class between each GPU and the HCA of its rail against the profile; without one below a PCIe switch."""
    name = "nvlink_topology.nic_affinity"
    if not hcas:
        return []
    fixed = profile.gpu_count if profile else None
    expected = gpus if gpus is not None else len(topology.gpus) if fixed is None else fixed
    board = [f"GPU{i}" for i in range(expected)]
    rails = paired_hcas(board, hcas)
    classes = profile.nic_classes if profile else _NEAR
    allowed = " or ".join(classes)
    source = profile.source if profile else "option hcas"
    if len(topology.gpus) != expected:
        return [unknown(name, "node", _RENUMBERED, "Bring all GPUs back first.", allowed, source)]
    if rails is None:
        reason = f"{len(hcas)} HCAs cannot be shared out evenly over {len(board)} GPUs"
        return [
            unknown(
                name,
                "node",
                reason,
                "Set hcas to one HCA per GPU in rail order, or to a divisor of that.",
                allowed,
                source,
            )
        ]
    seen = {c for g in topology.gpus for n in topology.nics if (c := topology.cells.get((g, n)))}
    checks: list[Check] = []
    good: list[str] = []
    for gpu in (g for g in board if g in topology.gpus):
        hca = rails[gpu]
        subject = f"{gpu}-{hca}"
        column = topology.nic_column(hca)
        if column is None:
            unnamed = [n for n in topology.nics if topology.nic_name(n) is None]
            if unnamed:
                reason = f"{', '.join(unnamed)} are not named by the NIC legend, so {hca} cannot be found"
                checks.append(unknown(name, subject, reason, _READ_AGAIN, allowed, source))
            else:
                there = ", ".join(str(topology.nic_name(n)) for n in topology.nics) or "none"
                remedy = (
                    "Check that the HCA is in its slot and its driver is loaded (lspci, ibdev2netdev), or correct hcas."
                )
                checks.append(
                    Check(
                        name,
                        subject,
                        "fail",
                        f"no such NIC in the matrix, it has {there}",
                        "missing",
                        allowed,
                        "",
                        source,
                        remedy,
                    )
                )
            continue
        cells = _both(topology, gpu, column)
        if None in cells:
            checks.append(unknown(name, subject, "its cell could not be read", _READ_AGAIN, allowed, source))
        elif cells[0] != cells[1]:
            reason = f"{cells[0]} one way and {cells[1]} the other"
            checks.append(
                unknown(name, subject, f"the matrix is not symmetric: {reason}", _READ_AGAIN, allowed, source)
            )
        elif cells[0] in classes:
            good.append(str(cells[0]))
        elif len(topology.gpus) > 1 and seen in ({"PHB"}, {"SYS"}):
            reason = (
                f"every NIC is {cells[0]} from every GPU: a virtual machine that hides the PCIe switches, "
                "or a container"
            )
            checks.append(
                unknown(
                    name, subject, reason, "Judge the host, or give the guest the host's PCIe layout.", allowed, source
                )
            )
        else:
            reason = f"the HCA of this GPU's rail is {cells[0]} away"
            remedy = "The HCA is in the wrong slot, or hcas is not in rail order. Compare with nvidia-smi topo -m."
            checks.append(Check(name, subject, "fail", reason, cells[0], allowed, "", source, remedy))
    if good:
        value = ", ".join(f"{n} {c}" for c, n in sorted(Counter(good).items()))
        checks.append(
            Check(name, "rails", "pass", "GPUs are close to the HCA of their rail", value, allowed, "", source)
        )
    return checks or [unknown(name, "node", "no GPU to pair with an HCA", _READ_AGAIN, allowed, source)]


# NUMA


def show_numa(topology: Topology) -> list[Check]:
    """Show the NUMA affinity of the GPUs of a board no profile describes: nothing says which node is the right one."""
    cells = {g: topology.affinity[g].numa for g in topology.gpus if g in topology.affinity}
    nodes = {g: n for g, v in cells.items() if (n := number_set(v))}
    unread = [p for p in topology.problems if p.subject.endswith(" affinity")]
    checks = [unknown("nvlink_topology.numa", p.subject.removesuffix(" affinity"), str(p), _READ_AGAIN) for p in unread]
    if nodes and not checks:
        reason = "NUMA node of each GPU that has one; no board says which it should be"
        checks.append(Check("nvlink_topology.numa", "all GPUs", "pass", reason, _numa_text(nodes)))
    return checks


def judge_numa(topology: Topology, profile: Profile, gpus: int | None = None) -> list[Check]:
    """Hold the NUMA affinity of the GPUs against the board's groups."""
    expected = gpus if gpus is not None else profile.gpu_count
    name, source = "nvlink_topology.numa", profile.source
    cells = {g: topology.affinity[g].numa for g in topology.gpus if g in topology.affinity}
    unread = [p for p in topology.problems if p.subject.endswith(" affinity")]
    limit = (
        "one node each for " + " and ".join(f"GPU{g[0]}-{g[-1]}" for g in profile.numa_groups)
        if profile.numa_groups
        else None
    )
    checks = [unknown(name, p.subject.removesuffix(" affinity"), str(p), _READ_AGAIN, limit, source) for p in unread]
    if not cells:
        return checks or [unknown(name, "node", "no GPU row with affinity cells was read", _READ_AGAIN, limit, source)]
    if all(v is None for v in cells.values()):
        # Drivers before 460 have no NUMA column. The CPUs of a GPU tell its socket as well.
        cells = {g: topology.affinity[g].cpu for g in cells}
        source += ", by CPU Affinity as this form has no NUMA column"
    blank = [g for g, v in cells.items() if v == ""]
    if len(blank) == len(cells):
        reason = "the affinity cells are blank, as under a cpuset (a batch job, a container) that hides the other CPUs"
        return [
            *checks,
            Check(
                name,
                "node",
                "warn",
                reason,
                f"blank for {len(blank)} GPUs",
                limit,
                "",
                source,
                "Run the gate outside a cpuset.",
            ),
        ]
    nodes = {g: number_set(v) for g, v in cells.items()}
    for gpu, found in nodes.items():
        if found is None:
            said = cells[gpu] or "not shown"
            remedy = "Look at /sys/bus/pci/devices/*/numa_node; -1 means that the firmware does not say."
            checks.append(unknown(name, gpu, f"its NUMA node is {said}", remedy, limit, source))
    known = {g: n for g, n in nodes.items() if n}
    if profile.numa_groups is None:
        if known and not checks:
            checks.append(
                Check(
                    name,
                    "all GPUs",
                    "pass",
                    f"every GPU has a NUMA node; {profile.numa_source}",
                    _numa_text(known),
                    None,
                    "",
                    source,
                )
            )
        return checks
    if len(topology.gpus) != expected:
        return [*checks, unknown(name, "node", _RENUMBERED, "Bring all GPUs back first.", limit, source)]
    checks.extend(_judge_groups(known, profile.numa_groups, limit, source))
    if not checks:
        checks.append(
            Check(
                name,
                "all GPUs",
                "pass",
                "each group of GPUs has a NUMA node of its own",
                _numa_text(known),
                limit,
                "",
                source,
            )
        )
    return checks


def _numa_text(nodes: Mapping[str, frozenset[int]]) -> str:
    """Return GPUs by node, such as "GPU0-3: 0, GPU4-7: 1"."""
    by_node: dict[str, set[int]] = {}
    for gpu, numbers in nodes.items():
        by_node.setdefault(format_set(numbers), set()).add(gpu_index(gpu))
    return ", ".join(
        f"GPU{format_set(gpus)}: {node}" for node, gpus in sorted(by_node.items(), key=lambda i: min(i[1]))
    )


def _judge_groups(
    known: Mapping[str, frozenset[int]], groups: Sequence[Sequence[int]], limit: str | None, source: str
) -> list[Check]:
    """Judge GPUs that must share a node, and groups that must not."""
    name = "nvlink_topology.numa"
    members = [[f"GPU{i}" for i in group if f"GPU{i}" in known] for group in groups]
    everywhere = frozenset().union(*known.values()) if known else frozenset()
    if len(everywhere) == 1 and sum(1 for m in members if m) > 1:
        reason = f"all GPUs are on NUMA node {format_set(everywhere)}, the board has GPUs on {len(groups)} sockets"
        remedy = (
            "Remove numa=off from the kernel command line, turn node interleaving off in the BIOS, or "
            "correct the guest definition."
        )
        return [Check(name, "node", "fail", reason, _numa_text(known), limit, "", source, remedy)]
    # The node of a group is the one most of its GPUs report; a tie is no majority, so that group has no home.
    counts = [Counter(known[g] for g in m).most_common() for m in members]
    homes = [c[0][0] if c and (len(c) == 1 or c[0][1] > c[1][1]) else None for c in counts]
    checks = []
    for index, group in enumerate(members):
        others = frozenset().union(*(known[g] for i, m in enumerate(members) if i != index for g in m))
        foreign_homes = frozenset().union(*(h for i, h in enumerate(homes) if i != index and h))
        for gpu in group:
            foreign = known[gpu] & others
            # A stray GPU of another socket must not condemn the GPUs whose node it reports.
            if foreign and (known[gpu] != homes[index] or foreign & foreign_homes):
                reason = f"it is on NUMA node {format_set(known[gpu])}, which belongs to GPUs of another socket"
                remedy = (
                    "The card hangs on the wrong socket or the BIOS reports a wrong proximity domain; "
                    "compare with a good node."
                )
                checks.append(Check(name, gpu, "fail", reason, format_set(known[gpu]), limit, "", source, remedy))
        if len(counts[index]) > 1 and not any(known[g] & others for g in group):
            reason = (
                "GPUs of one socket are on several NUMA nodes (sub-NUMA clustering, NPS), so an IU of "
                "them has no single node"
            )
            remedy = "Set sub-NUMA clustering (Intel) or NPS1 (AMD) in the BIOS, or use smaller IUs."
            value = _numa_text({g: known[g] for g in group})
            checks.append(
                Check(
                    name, f"GPU{groups[index][0]}-{groups[index][-1]}", "warn", reason, value, limit, "", source, remedy
                )
            )
    return checks


# Inference units


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as `nvidia-smi --query-gpu=index,uuid,pci.bus_id` lists it."""

    index: int
    uuid: str
    bus_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Grouping:
    """GPU indices by unit, and why a GPU is in none or a planned unit cannot be."""

    units: tuple[tuple[int, ...], ...]
    problems: tuple[str, ...] = ()


_MAX_STEPS = 200_000
_MAX_GPUS = 128


def joined(topology: Topology, a: int, b: int) -> bool:
    """Return whether two GPUs are joined by NVLink in both cells. The width is nvlink_topology's business."""
    return bool(width(topology.cells.get((f"GPU{a}", f"GPU{b}"))) and width(topology.cells.get((f"GPU{b}", f"GPU{a}"))))


def derive_groups(topology: Topology, numa: Mapping[int, int], size: int, *, spans_numa: bool) -> Grouping:
    """Split the GPUs into units of `size`, pairwise joined and on one NUMA node unless the board spans nodes.

    Low indices come first. The split with the fewest GPUs left over is looked for within a bounded number of steps.
    """
    gpus = [gpu_index(g) for g in topology.gpus]
    if len(gpus) > _MAX_GPUS:
        return Grouping((), (f"{len(gpus)} GPUs in one matrix, units are formed of at most {_MAX_GPUS}",))

    def fits(unit: tuple[int, ...], gpu: int) -> bool:
        return all(
            joined(topology, u, gpu) and (spans_numa or (u in numa and numa.get(u) == numa.get(gpu))) for u in unit
        )

    best: tuple[tuple[int, ...], ...] = ()
    steps = 0

    def search(free: tuple[int, ...], done: tuple[tuple[int, ...], ...]) -> bool:
        """Extend `done`; return whether nothing better can come."""
        nonlocal best, steps
        if len(done) > len(best):
            best = done
        if len(best) == len(gpus) // size:
            return True
        if len(done) + len(free) // size <= len(best):
            return False
        first, rest = free[0], free[1:]
        stack: list[tuple[int, ...]] = [(first,)]
        while stack:
            steps += 1
            if steps > _MAX_STEPS:
                return True
            unit = stack.pop()
            if len(unit) == size:
                if search(tuple(g for g in free if g not in unit), (*done, unit)):
                    return True
                continue
            stack.extend((*unit, g) for g in reversed(rest) if g > unit[-1] and fits(unit, g))
        return search(rest, done)

    if gpus and size > 0:
        search(tuple(gpus), ())
    units = best
    left = [g for g in gpus if all(g not in u for u in units)]
    problems: tuple[str, ...] = ()
    if left:
        where = "" if spans_numa else " on one NUMA node"
        problems = (f"{_names(left)} do not form a unit of {size} GPUs pairwise joined by NVLink{where}",)
    return Grouping(units, problems)


def _names(gpus: Sequence[int]) -> str:
    return ", ".join(f"GPU{g}" for g in gpus)


def check_plan(
    plan: Sequence[Mapping[str, Any]],
    gpus: Sequence[Gpu],
    topology: Topology,
    numa: Mapping[int, int],
    size: int,
    *,
    spans_numa: bool,
) -> Grouping:
    """Hold planned units against what was measured; the problems name the GPUs."""
    by_name = {**{str(g.index): g.index for g in gpus}, **{g.uuid: g.index for g in gpus}}
    problems: list[str] = []
    units: list[tuple[int, ...]] = []
    owner: dict[int, int] = {}
    for number, entry in enumerate(plan):
        unit: list[int] = []
        for wanted in map(str, entry["gpus"]):
            if wanted not in by_name:
                problems.append(f"unit {number} of the plan wants GPU {wanted}, which the node does not have")
            elif by_name[wanted] in owner:
                problems.append(
                    f"GPU{by_name[wanted]} is planned for unit {owner[by_name[wanted]]} and for unit {number}"
                )
            else:
                unit.append(by_name[wanted])
                owner[by_name[wanted]] = number
        if len(entry["gpus"]) != size:
            problems.append(
                f"unit {number} of the plan has {len(entry['gpus'])} GPUs ({_names(unit)}), a unit has {size}"
            )
        problems.extend(
            f"GPU{a} and GPU{b} of unit {number} are not joined by NVLink"
            for a, b in itertools.combinations(unit, 2)
            if not joined(topology, a, b)
        )
        nodes = {numa[g] for g in unit if g in numa}
        wanted_node = entry.get("numa_node")
        if wanted_node is not None:
            wrong = [g for g in unit if numa.get(g) != wanted_node]
            if wrong:
                seen = ", ".join(sorted({str(numa.get(g, "unknown")) for g in wrong}))
                problems.append(
                    f"{_names(wrong)} of unit {number} are on NUMA node {seen}, the plan says {wanted_node}"
                )
        elif len(nodes) > 1 and not spans_numa:
            problems.append(f"{_names(unit)} of unit {number} are on NUMA nodes {format_set(nodes)}")
        units.append(tuple(unit))
    left = [g.index for g in gpus if g.index not in owner]
    if left:
        problems.append(f"{_names(left)} are on the board and in no unit of the plan")
    return Grouping(tuple(units), tuple(problems))


def split_cpus(cpus: frozenset[int], parts: int, siblings: Iterable[frozenset[int]] = ()) -> list[frozenset[int]]:
    """Split a NUMA node's CPUs into disjoint parts of whole cores; what cannot be shared out evenly stays unused.

    `siblings` are the hardware threads of each core. Where they are not known, the usual numbering stands in: second
    threads have a range of their own in the order of the first, so ranges of one length are cut at the same place.
    """
    cores = sorted((core & cpus for core in siblings if core & cpus), key=min)
    if cores and frozenset().union(*cores) == cpus and sum(map(len, cores)) == len(cpus):
        share = len(cores) // parts
        return [frozenset().union(*cores[i * share : (i + 1) * share]) for i in range(parts)]
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][-1] + 1:
            ranges[-1].append(cpu)
        else:
            ranges.append([cpu])
    if len({len(r) for r in ranges}) != 1 or len(ranges[0]) < parts:
        ranges = [sorted(cpus)]
    share = len(ranges[0]) // parts
    return [frozenset(c for r in ranges for c in r[i * share : (i + 1) * share]) for i in range(parts)]


def nearest_nics(topology: Topology, unit: Sequence[int], hcas: Sequence[str]) -> list[str]:
    """Return the device names of the NICs closest to any GPU of a unit, in rail order where `hcas` gives one."""
    order = {name: rank for rank, name in enumerate(PCIE_CLASSES)}
    reach: dict[str, int] = {}
    for column in topology.nics:
        name = topology.nic_name(column)
        if name is None or (hcas and name not in hcas):
            continue
        classes = [order[c] for g in unit if (c := topology.cells.get((f"GPU{g}", column))) in order]
        if classes:
            reach[name] = min(classes)
    # PIX and PXB are the same distance here: both stay below the host bridge.
    near = min((max(rank, 1) for rank in reach.values()), default=0)
    found = [name for name, rank in reach.items() if max(rank, 1) == near]
    return sorted(found, key=hcas.index) if hcas else found


def unit_value(unit: Sequence[int], nodes: frozenset[int] | set[int]) -> Value:
    """Return how a unit is shown: its GPUs and NUMA nodes."""
    return f"GPU{format_set(set(unit))} on NUMA {format_set(set(nodes))}" if nodes else f"GPU{format_set(set(unit))}"
