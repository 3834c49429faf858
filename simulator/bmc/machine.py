# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One BMC: its node's hardware, and what the BMC itself remembers (boot override, tasks, counters)."""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bmc import bios_table
from bmc.hardware import Change, Description, Hardware

LOG = logging.getLogger("bmc")
RESET_TYPES = ("On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "PowerCycle")
INVENTORY = "/redfish/v1/UpdateService/FirmwareInventory"
TASKS = "/redfish/v1/TaskService/Tasks"
_FRESH_S = 1.0
_IMAGE_SOURCES = ("Pxe", "Cd", "UefiHttp")


class Refused(Exception):
    """The BMC refuses a request: HTTP status, Redfish message id, text, and the property it is about."""

    def __init__(
        self, status: int, message_id: str, message: str, related: str | None = None, args: Sequence[str] = ()
    ) -> None:
        """Keep the parts of the extended error."""
        super().__init__(message)
        self.status = status
        self.info: dict[str, Any] = {
            "@odata.type": "#Message.v1_1_1.Message",
            "MessageId": f"Base.1.8.{message_id}",
            "Message": message,
            "MessageArgs": list(args),
            "Severity": "Warning",
        }
        if related:
            self.info["RelatedProperties"] = [related]

    def body(self) -> dict[str, Any]:
        """Return the Redfish error body. The useful text is in the extended info, as on real BMCs."""
        return {
            "error": {
                "code": "Base.1.8.GeneralError",
                "message": "A general error has occurred. See ExtendedInfo for more information.",
                "@Message.ExtendedInfo": [self.info],
            }
        }


def now() -> str:
    """Return the time as Redfish writes it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def inventory_id(target: str) -> str:
    """Return the component a Targets entry names."""
    return target.rstrip("/").rsplit("/", 1)[-1]


class Machine:
    """A BMC with its node. All methods may be called from several threads."""

    def __init__(
        self, name: str, uuid: str, vendor: str, hardware: Hardware, state_file: Path, task_seconds: float = 0.5
    ) -> None:
        """Load what the BMC remembers from `state_file`."""
        self.name = name
        self.uuid = uuid
        self.vendor = vendor
        self.hardware = hardware
        self._state_file = state_file
        self._task_seconds = task_seconds
        self._power = threading.Lock()
        self._lock = threading.RLock()
        self._threads: list[threading.Thread] = []
        self._seen: tuple[float, Description] | None = None
        self._state: dict[str, Any] = {
            "boot": {"target": "None", "enabled": "Disabled"},
            "unscheduled": {},
            "tasks": [],
            "last_reset": None,
            "power_cycles": 0,
            "installs": 0,
        }
        if state_file.exists():
            self._state.update(json.loads(state_file.read_text()))
        if self._state["last_reset"] is None:
            self._state["last_reset"] = now()

    @contextlib.contextmanager
    def _remember(self) -> Iterator[dict[str, Any]]:
        """Yield the BMC's memory for a change and store it."""
        with self._lock:
            yield self._state
            self._state_file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._state_file.with_suffix(".new")
            temporary.write_text(json.dumps(self._state, indent=1))
            os.replace(temporary, self._state_file)

    def _background(self, target: Callable[..., None], *args: Any) -> None:
        """Run work that outlives the request."""
        thread = threading.Thread(target=target, args=args, daemon=True, name=f"{self.name}-{target.__name__}")
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _description(self) -> Description:
        """Return the hardware description, at most a second old: a client reads dozens of resources in a row."""
        with self._lock:
            seen = self._seen
            if seen is None or time.monotonic() - seen[0] > _FRESH_S:
                seen = self._seen = (time.monotonic(), self.hardware.read())
            return seen[1]

    def _change(self, change: Change) -> None:
        """Change the hardware description."""
        self.hardware.update(change)
        with self._lock:
            self._seen = None

    def settle(self, timeout: float = 60.0) -> None:
        """Wait for all background work: for tests."""
        deadline = time.monotonic() + timeout
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    # Power

    def power_state(self) -> str:
        """Return On or Off."""
        return "On" if self.hardware.is_on() else "Off"

    def reset(self, reset_type: str) -> None:
        """Start a power action and return; actions of one node run one after the other."""
        if reset_type not in RESET_TYPES:
            raise Refused(
                400,
                "ActionParameterNotSupported",
                f"The parameter ResetType with value {reset_type} is not supported. Supported: "
                f"{', '.join(RESET_TYPES)}.",
                "#/ResetType",
                (reset_type,),
            )
        if reset_type in ("GracefulShutdown", "GracefulRestart") and not self.hardware.is_on():
            raise Refused(409, "ResourceInStandby", f"{reset_type} is not possible: the system is powered off.")
        self._background(self._reset, reset_type)

    def _reset(self, reset_type: str) -> None:
        """Carry a power action out."""
        with self._power:
            LOG.info("%s: %s", self.name, reset_type)
            if reset_type != "On" and self.hardware.is_on():
                self.hardware.stop(graceful=reset_type.startswith("Graceful"))
                if self.hardware.is_on():
                    LOG.info("%s: the operating system did not shut down", self.name)
                    return
            if reset_type not in ("ForceOff", "GracefulShutdown") and not self.hardware.is_on():
                self._start()

    def _start(self) -> None:
        """Power the node on, from the network or virtual media when the boot override says so."""
        with self._lock:
            boot = dict(self._state["boot"])
        reimage = boot["enabled"] != "Disabled" and boot["target"] in _IMAGE_SOURCES
        if reimage:
            self.hardware.reimage()
            self._change(_count_install)
        self.hardware.start()
        with self._lock:
            self._seen = None
        with self._remember() as state:
            state["power_cycles"] += 1
            state["installs"] += int(reimage)
            state["last_reset"] = now()
            if boot["enabled"] == "Once":
                state["boot"] = {"target": "None", "enabled": "Disabled"}

    @property
    def counters(self) -> dict[str, int]:
        """Return how often this BMC powered its node on, and how often from an image source."""
        return {"PowerCycles": self._state["power_cycles"], "Installs": self._state["installs"]}

    @property
    def last_reset(self) -> str:
        """Return when the node was last powered on: by this BMC, or before this BMC first ran."""
        value: str = self._state["last_reset"]
        return value

    @property
    def boot(self) -> dict[str, str]:
        """Return the boot override: target and enabled."""
        return dict(self._state["boot"])

    def set_boot(self, target: str | None, enabled: str | None) -> None:
        """Change the boot override."""
        with self._remember() as state:
            boot = state["boot"]
            if target is not None:
                boot["target"] = target
            boot["enabled"] = enabled or ("Continuous" if boot["enabled"] == "Disabled" else boot["enabled"])
            if boot["target"] == "None":
                boot["enabled"] = "Disabled"

    # BIOS

    def bios_current(self, description: Description | None = None) -> dict[str, str]:
        """Return the values the node booted with."""
        return {**bios_table.defaults(self.vendor), **(description or self._description())["bios"]["current"]}

    def bios_settings(self) -> dict[str, str]:
        """Return the Settings resource: what is pending (Dell), or all values with the pending ones in place."""
        description = self._description()
        pending = {**description["bios"]["pending"], **self._state["unscheduled"]}
        return pending if self.vendor == "dell" else {**self.bios_current(description), **pending}

    def set_bios(self, wanted: Mapping[str, Any], apply_time: str | None) -> None:
        """Make values pending until the next power-on; refuse the whole request when one of them is wrong.

        Dell wants an apply time: values written without one stay in the Settings resource and no boot ever applies
        them.
        """
        description = self._description()
        known = bios_table.attributes(self.vendor)
        after = {
            **self.bios_current(description),
            **description["bios"]["pending"],
            **self._state["unscheduled"],
            **wanted,
        }
        for name, value in wanted.items():
            path = f"#/Attributes/{name}"
            if name not in known:
                raise Refused(
                    400,
                    "PropertyUnknown",
                    f"The property {name} is not in the list of valid properties for the resource.",
                    path,
                    (name,),
                )
            if value not in [v for v, _display in known[name].values]:
                raise Refused(
                    400,
                    "PropertyValueNotInList",
                    f"The value {value} for the property {name} is not in the list of acceptable values.",
                    path,
                    (str(value), name),
                )
            if not bios_table.writable(known[name], after):
                raise Refused(
                    400,
                    "PropertyNotWritable",
                    f"The property {name} is a read only property and cannot be assigned a value.",
                    path,
                    (name,),
                )
        if description["bios"].get("ignore_writes"):
            LOG.info("%s: BIOS write accepted and ignored: %s", self.name, dict(wanted))
            return
        if self.vendor == "dell" and apply_time is None:
            with self._remember() as state:
                state["unscheduled"].update(wanted)
            return

        def stage(hw: Description) -> Description:
            hw["bios"].setdefault("pending", {}).update(wanted)
            return hw

        self._change(stage)
        with self._remember() as state:
            for name in wanted:
                state["unscheduled"].pop(name, None)

    def reset_bios(self) -> None:
        """Make the factory values pending."""

        def stage(hw: Description) -> Description:
            factory = bios_table.defaults(self.vendor)
            hw["bios"]["pending"] = {n: v for n, v in factory.items() if hw["bios"]["current"].get(n) != v}
            return hw

        self._change(stage)

    # Firmware

    def firmware(self) -> dict[str, str]:
        """Return the running version of every component."""
        return dict(self._description()["firmware"]["current"])

    def tasks(self) -> list[dict[str, Any]]:
        """Return all tasks, oldest first."""
        with self._lock:
            return [dict(t) for t in self._state["tasks"]]

    def task(self, identity: str) -> dict[str, Any] | None:
        """Return one task."""
        return next((t for t in self.tasks() if t["Id"] == identity), None)

    def simple_update(self, uri: str, targets: Sequence[str]) -> dict[str, Any]:
        """Begin a firmware update from `uri` and return its task."""
        with self._remember() as state:
            identity = str(len(state["tasks"]) + 1)
            task = {
                "@odata.type": "#Task.v1_4_3.Task",
                "@odata.id": f"{TASKS}/{identity}",
                "Id": identity,
                "Name": f"Task {identity}",
                "TaskState": "Running",
                "TaskStatus": "OK",
                "PercentComplete": 0,
                "StartTime": now(),
                "Messages": [],
            }
            state["tasks"].append(task)
            answer = dict(task)
        self._background(self._update, identity, uri, list(targets))
        return answer

    def _finish(self, identity: str, state: str, messages: Sequence[tuple[str, Sequence[str], str, str]]) -> None:
        """End a task with messages (id, args, text, resolution) of Redfish's update registry."""
        good = state == "Completed"
        with self._remember() as memory:
            task = next(t for t in memory["tasks"] if t["Id"] == identity)
            task.update(
                TaskState=state,
                TaskStatus="OK" if good else "Critical",
                EndTime=now(),
                PercentComplete=100 if good else 0,
            )
            task["Messages"] = [
                {
                    "@odata.type": "#Message.v1_0_0.Message",
                    "MessageId": f"Update.1.0.{message_id}",
                    "MessageArgs": list(args),
                    "Message": text,
                    "Resolution": resolution,
                    "Severity": "OK" if good else "Critical",
                }
                for message_id, args, text, resolution in messages
            ]

    def _update(self, identity: str, uri: str, targets: Sequence[str]) -> None:
        """Fetch the package and stage its versions until the next power-on."""
        time.sleep(self._task_seconds)
        try:
            with urllib.request.urlopen(uri, timeout=20) as response:
                raw = response.read()
        except (urllib.error.URLError, OSError, ValueError) as exc:
            text = f"Transfer of image '{uri}' to 'BMC' failed: {exc}"
            self._finish(
                identity,
                "Exception",
                [("TransferFailed", (uri, "BMC"), text, "Check that the BMC reaches the image server.")],
            )
            return
        try:
            package = json.loads(raw)
            components = dict(package["components"])
        except (ValueError, KeyError, TypeError):
            text = f"Verification of image '{uri}' at 'BMC' failed."
            self._finish(
                identity, "Exception", [("VerificationFailed", (uri, "BMC"), text, "Use a package of this board.")]
            )
            return
        current = self.firmware()
        wanted_ids = {inventory_id(t) for t in targets}
        staged = {
            name: version
            for pattern, version in components.items()
            for name in fnmatch.filter(sorted(current), pattern)
            if not wanted_ids or name in wanted_ids
        }
        if not staged:
            text = (
                f"Installation of image '{uri}' to '{', '.join(sorted(wanted_ids)) or 'any component'}' "
                f"failed: it holds nothing for it."
            )
            self._finish(identity, "Exception", [("ApplyFailed", (uri, "BMC"), text, "Use a package of this board.")])
            return

        def stage(hw: Description) -> Description:
            pending = hw["firmware"].setdefault("pending", {})
            for name, version in staged.items():
                if hw["firmware"]["current"][name] == version:
                    pending.pop(name, None)
                else:
                    pending[name] = version
            return hw

        self._change(stage)
        messages: list[tuple[str, Sequence[str], str, str]] = []
        for name, version in sorted(staged.items()):
            messages.append(
                (
                    "UpdateSuccessful",
                    (name, version),
                    f"Device '{name}' successfully updated with image '{version}'.",
                    "None.",
                )
            )
            if current[name] != version:
                text = f"Awaiting for an action to proceed with activating image '{version}' on '{name}'."
                messages.append(("AwaitToActivate", (version, name), text, "DC power cycle or AC power cycle."))
        self._finish(identity, "Completed", messages)


def _count_install(hw: Description) -> Description:
    """Count a reinstallation in the hardware description."""
    counters = hw.setdefault("counters", {})
    counters["installs"] = counters.get("installs", 0) + 1
    return hw
