# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the simulated switch prints, in the formats of NVIDIA's manuals and of public captures. Pure.

A fault is a line: `switch: static routing`, `switch: congestion control off`, `switch: hangs`, `switch: garbage`.
"""

from __future__ import annotations

from collections.abc import Collection

STATIC = "switch: static routing"
NO_CONTROL = "switch: congestion control off"
HANGS = "switch: hangs"
GARBAGE = "switch: garbage"
FAULTS: dict[str, str] = {
    STATIC: "adaptive routing off (NVOS, Cumulus); the switch's own subnet manager on (MLNX-OS), which cannot route so",
    NO_CONTROL: "no ECN and no flow control (Cumulus, Onyx)",
    HANGS: "commands never end",
    GARBAGE: "commands print what nobody can read",
}
SYSTEMS = ("nvos", "mlnx_os", "cumulus", "onyx")
PROMPTED = ("mlnx_os", "onyx")
"""Systems without a shell: commands are typed after a prompt."""


class Unknown(Exception):
    """A command the system does not have, in its own words."""


def answer(system: str, command: str, faults: Collection[str]) -> str:
    """Return what a command prints, or raise Unknown."""
    words = " ".join(command.split())
    static, off = STATIC in faults, NO_CONTROL in faults
    if GARBAGE in faults:
        return "\x00\x1f~~ 7f3a 00 ~~\n"
    if system == "nvos" and words == "nv show system profile":
        return _profile("disabled" if static else "enabled")
    if system == "cumulus" and words == "nv show router adaptive-routing":
        return f"        applied\n------  -------\nenable  {'off' if static else 'on'}\n"
    if system == "cumulus" and words == "nv show qos roce":
        return _ROCE_OFF if off else _ROCE
    if system == "mlnx_os" and words == "show ib sm":
        return "enable\n" if static else "disable\n"
    if system == "onyx" and words == "show roce":
        return "RoCE mode: N/A\n" if off else _ONYX
    if system in PROMPTED:
        raise Unknown(f'% Unrecognized command "{words.partition(" ")[0]}".\n% Type "?" for help.\n')
    raise Unknown(
        f"Error: 'nv' does not know: {words}\n" if words.startswith("nv ") else f"bash: {words}: command not found\n"
    )


def _profile(state: str) -> str:
    rows = (
        ("adaptive-routing", state),
        ("adaptive-routing-groups", "1792"),
        ("breakout-mode", "disabled"),
        ("ib-routing", "disabled"),
        ("num-of-swids", "1"),
    )
    table = "".join(f"{name:<23}  {value:<11}  {'':<7}\n" for name, value in rows)
    return f"{'':<23}  operational  applied\n{'-' * 23}  {'-' * 11}  {'-' * 7}\n{table}"


_ROCE_OFF = """\
        operational  applied
------  -----------  -------
enable               off
"""
_ROCE = """\
                    operational  applied
------------------  -----------  --------
enable                           on
mode                lossless     lossless
pfc
  pfc-priority      3
  rx-enabled        enabled
  tx-enabled        enabled
  cable-length      100
congestion-control
  congestion-mode   ECN
  enabled-tc        0,3
  min-threshold     146.48 KB
  max-threshold     1.43 MB
  probability       100
trust
  trust-mode        pcp,dscp
lldp-app-tlv
  priority          3
  protocol-id       4791
  selector          UDP

RoCE SP->TC mapping and ETS configurations
=============================================
       switch-prio  traffic-class  scheduler-weight
    -  -----------  -------------  ----------------
    0  0            0              DWRR-50%
    1  1            0              DWRR-50%
    2  2            0              DWRR-50%
    3  3            3              DWRR-50%
    4  4            0              DWRR-50%
    5  5            0              DWRR-50%
    6  6            6              strict-priority
    7  7            0              DWRR-50%
"""
_ONYX = """\
RoCE mode      : lossless
LLDP           : enabled
Port trust mode: L3

Application TLV:
  Selector: udp
  Protocol: 4791
  Priority: 3

Port congestion-control:
  Mode    : ecn, absolute
  Min (KB): 150
  Max (KB): 1500

PFC              : enabled
switch-priority 3: enabled

RoCE used TCs:
  ----------------------------------------------
  Switch-Priority   TC     Application   ETS
  ----------------------------------------------
  3                 3      RoCE          WRR 50%
  6                 6      CNP           Strict
"""
