# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The Redfish service: sushy-tools' emulator with a driver of ours, and the resources it lacks.

sushy-tools (2.2) has no firmware inventory, no pending BIOS settings, one canned task, and always reports a continuous
boot override. Its application is one module-level Flask object that chooses its driver by name, so the driver is put in
its place before first use and the views concerned are replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import bcrypt
import flask
from sushy_tools import error
from sushy_tools.emulator import main
from sushy_tools.emulator.resources.systems import fakedriver

from bmc import bios_table
from bmc.machine import INVENTORY, RESET_TYPES, TASKS, Machine, Refused

ROOT = "/redfish/v1"


class RackDriver(fakedriver.FakeDriver):  # type: ignore[misc]  # sushy-tools has no type hints
    """Systems of a rack. A BMC shows only the system whose address was asked."""

    machines: Mapping[str, Machine] = {}
    """Machine by the host[:port] of its BMC; set by `configure`."""

    @property
    def systems(self) -> list[str]:
        """Return the one system behind the address of this request."""
        return [self.machine().uuid]

    @classmethod
    def machine(cls) -> Machine:
        """Return the machine behind the address of this request."""
        machine = cls.machines.get(flask.request.host)
        if machine is None:
            raise error.NotFound(f"No BMC answers at {flask.request.host}")
        return machine

    def _get(self, identity: str) -> Any:
        """Return the emulator's record of a system, when it is this BMC's."""
        machine = self.machine()
        if identity not in (machine.uuid, machine.name):
            raise error.NotFound(f"System {identity} was not found")
        return super()._get(identity)

    def get_power_state(self, identity: str) -> str:
        """Return On or Off, from the container."""
        self._get(identity)
        return self.machine().power_state()

    def set_power_state(self, identity: str, state: str) -> None:
        """Start a power action."""
        self._get(identity)
        self.machine().reset(state)

    def get_boot_device(self, identity: str) -> str:
        """Return the boot override's target."""
        self._get(identity)
        return self.machine().boot["target"]

    def set_boot_device(self, identity: str, boot_source: str) -> None:
        """Set the boot override's target."""
        self._get(identity)
        boot = flask.request.get_json().get("Boot", {})
        self.machine().set_boot(boot_source, boot.get("BootSourceOverrideEnabled"))

    def get_bios(self, identity: str) -> dict[str, str]:
        """Say that there is a BIOS. Its values are served by views of our own; the system's view only asks for this."""
        self._get(identity)
        return bios_table.defaults(self.machine().vendor)

    def reset_bios(self, identity: str) -> None:
        """Make the factory values pending."""
        self._get(identity)
        self.machine().reset_bios()


def _json(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> flask.Response:
    """Return a JSON response."""
    return flask.Response(json.dumps(data, indent=1), status, dict(headers or {}), content_type="application/json")


def _link(path: str) -> dict[str, str]:
    """Return a Redfish link."""
    return {"@odata.id": path}


def _collection(path: str, kind: str, name: str, members: Sequence[str]) -> flask.Response:
    """Return a collection of links."""
    return _json(
        {
            "@odata.type": f"#{kind}.{kind}",
            "@odata.id": path,
            "Name": name,
            "Members": [_link(m) for m in members],
            "Members@odata.count": len(members),
        }
    )


def _checked(view: Callable[..., Any]) -> Callable[..., Any]:
    """Return the view with refusals turned into Redfish errors and foreign systems into 404."""

    def checked(**arguments: str) -> Any:
        if "identity" in arguments:
            machine = RackDriver.machine()
            if arguments["identity"] == machine.name:
                arguments["identity"] = machine.uuid
            if arguments["identity"] != machine.uuid:
                raise error.NotFound(f"System {arguments['identity']} was not found")
        try:
            return view(**arguments)
        except Refused as refused:
            return _json(refused.body(), refused.status)

    return checked


def _body() -> dict[str, Any]:
    """Return the request's JSON object."""
    body = flask.request.get_json(silent=True)
    if not isinstance(body, dict):
        raise Refused(400, "MalformedJSON", "The request body submitted was malformed JSON and could not be parsed.")
    return body


def _settings_view(identity: str) -> flask.Response:
    """Serve the pending BIOS settings, with the entity tag a client may hold a write to."""
    machine = RackDriver.machine()
    settings = machine.bios_settings()
    tag = f'"{hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]}"'
    if flask.request.method == "PATCH":
        condition = flask.request.headers.get("If-Match")
        if condition not in (None, "*", tag):
            raise Refused(
                412, "PreconditionFailed", "The ETag supplied did not match the ETag of the current resource."
            )
        body = _body()
        attributes = body.get("Attributes")
        if not isinstance(attributes, dict) or not attributes:
            raise Refused(
                400,
                "PropertyMissing",
                "The property Attributes is a required property and must be included in the request.",
            )
        machine.set_bios(attributes, body.get("@Redfish.SettingsApplyTime", {}).get("ApplyTime"))
        return _json(
            {
                "@Message.ExtendedInfo": [
                    {"MessageId": "Base.1.8.Success", "Message": "The request completed successfully."}
                ]
            }
        )
    path = f"{ROOT}/Systems/{identity}/BIOS/Settings"
    return _json(
        {
            "@odata.type": "#Bios.v1_1_0.Bios",
            "@odata.id": path,
            "@odata.etag": tag,
            "Id": "Settings",
            "Name": "BIOS Configuration Pending Settings",
            "AttributeRegistry": bios_table.REGISTRY,
            "Attributes": settings,
        },
        headers={"ETag": tag},
    )


def _bios_view(identity: str) -> flask.Response:
    """Serve the current BIOS settings."""
    machine = RackDriver.machine()
    path = f"{ROOT}/Systems/{identity}/BIOS"
    return _json(
        {
            "@odata.type": "#Bios.v1_1_0.Bios",
            "@odata.id": path,
            "Id": "BIOS",
            "Name": "BIOS Configuration Current Settings",
            "AttributeRegistry": bios_table.REGISTRY,
            "Attributes": machine.bios_current(),
            "@Redfish.Settings": {
                "@odata.type": "#Settings.v1_3_0.Settings",
                "SettingsObject": _link(f"{path}/Settings"),
                "SupportedApplyTimes": ["OnReset"],
            },
            "Actions": {"#Bios.ResetBios": {"target": f"{path}/Actions/Bios.ResetBios"}},
        }
    )


def _update_service_view() -> flask.Response:
    """Serve the update service."""
    return _json(
        {
            "@odata.type": "#UpdateService.v1_8_0.UpdateService",
            "@odata.id": f"{ROOT}/UpdateService",
            "Id": "UpdateService",
            "Name": "Update Service",
            "ServiceEnabled": True,
            "FirmwareInventory": _link(INVENTORY),
            "Actions": {
                "#UpdateService.SimpleUpdate": {
                    "target": f"{ROOT}/UpdateService/Actions/UpdateService.SimpleUpdate",
                    "TransferProtocol@Redfish.AllowableValues": ["HTTP", "HTTPS"],
                }
            },
        }
    )


def _simple_update_view() -> flask.Response:
    """Begin an update."""
    body = _body()
    uri, targets = body.get("ImageURI"), body.get("Targets") or []
    if not isinstance(uri, str) or "://" not in uri:
        raise Refused(
            400,
            "ActionParameterMissing",
            "The action SimpleUpdate requires the parameter ImageURI as a URI.",
            "#/ImageURI",
        )
    machine = RackDriver.machine()
    known = machine.firmware()
    for target in targets:
        if target.rsplit("/", 1)[0] != INVENTORY or target.rsplit("/", 1)[-1] not in known:
            raise Refused(
                400,
                "ActionParameterValueFormatError",
                f"The target {target} is not a component of {INVENTORY}.",
                "#/Targets",
            )
    task = machine.simple_update(uri, targets)
    return _json(task, 202, {"Location": task["@odata.id"]})


def _inventory_view() -> flask.Response:
    """Serve the list of firmware components."""
    members = [f"{INVENTORY}/{name}" for name in sorted(RackDriver.machine().firmware())]
    return _collection(INVENTORY, "SoftwareInventoryCollection", "Firmware Inventory", members)


def _component_view(component: str) -> flask.Response:
    """Serve one firmware component."""
    firmware = RackDriver.machine().firmware()
    if component not in firmware:
        raise error.NotFound(f"Firmware component {component} was not found")
    return _json(
        {
            "@odata.type": "#SoftwareInventory.v1_4_0.SoftwareInventory",
            "@odata.id": f"{INVENTORY}/{component}",
            "Id": component,
            "Name": component,
            "Version": firmware[component],
            "Updateable": not component.startswith("HGX_InfoROM"),
            "Status": {"State": "Enabled", "Health": "OK"},
        }
    )


def _task_service_view() -> flask.Response:
    """Serve the task service."""
    return _json(
        {
            "@odata.type": "#TaskService.v1_1_2.TaskService",
            "@odata.id": f"{ROOT}/TaskService",
            "Id": "TaskService",
            "Name": "Task Service",
            "ServiceEnabled": True,
            "Tasks": _link(TASKS),
        }
    )


def _tasks_view() -> flask.Response:
    """Serve the list of tasks."""
    return _collection(TASKS, "TaskCollection", "Tasks", [t["@odata.id"] for t in RackDriver.machine().tasks()])


def _task_view(task: str = "42") -> flask.Response:
    """Serve one task. The default is the id of the emulator's only task, whose route this also takes."""
    found = RackDriver.machine().task(task)
    if found is None:
        raise error.NotFound(f"Task {task} was not found")
    return _json(found)


def _registry_file_view() -> flask.Response:
    """Serve where the BIOS attribute registry is."""
    return _json(
        {
            "@odata.type": "#MessageRegistryFile.v1_1_0.MessageRegistryFile",
            "@odata.id": f"{ROOT}/Registries/{bios_table.REGISTRY}",
            "Id": bios_table.REGISTRY,
            "Name": "BIOS Attribute Registry File",
            "Registry": bios_table.REGISTRY,
            "Languages": ["en"],
            "Location": [{"Language": "en", "Uri": f"{ROOT}/Systems/Bios/BiosRegistry"}],
        }
    )


def _registry_view() -> flask.Response:
    """Serve the BIOS attribute registry of this BMC's vendor."""
    return _json({"@odata.id": f"{ROOT}/Systems/Bios/BiosRegistry", **bios_table.registry(RackDriver.machine().vendor)})


def _amend(response: flask.Response) -> flask.Response:
    """Put right what the emulator's templates hard-code, and add our counters."""
    path = flask.request.path.rstrip("/")
    if flask.request.method != "GET" or response.status_code != 200 or not response.is_json:
        return response
    machine = RackDriver.machines.get(flask.request.host)
    if machine is None:
        return response
    manufacturer = bios_table.MANUFACTURER[machine.vendor]
    data = json.loads(response.get_data())
    if path == ROOT:
        data.update(Vendor=manufacturer, Tasks=_link(f"{ROOT}/TaskService"))
    elif path in (f"{ROOT}/Systems/{machine.uuid}", f"{ROOT}/Systems/{machine.name}"):
        boot = machine.boot
        data.update(Manufacturer=manufacturer, Model=bios_table.MODEL[machine.vendor], HostName=machine.name)
        data["LastResetTime"] = machine.last_reset
        data["Boot"].update(BootSourceOverrideEnabled=boot["enabled"], BootSourceOverrideTarget=boot["target"])
        data["Boot"]["BootSourceOverrideTarget@Redfish.AllowableValues"] = ["None", "Pxe", "Cd", "Hdd", "UefiHttp"]
        data["Actions"]["#ComputerSystem.Reset"]["ResetType@Redfish.AllowableValues"] = list(RESET_TYPES)
        data["Oem"] = {"Sim": machine.counters}
    elif path.startswith((f"{ROOT}/Managers/", f"{ROOT}/Chassis/")):
        data.update(Manufacturer=manufacturer, Model=bios_table.MODEL[machine.vendor])
    else:
        return response
    response.set_data(json.dumps(data, indent=1))
    return response


def _write_auth_file(path: Path, username: str, password: str) -> None:
    """Write the emulator's password file. The cheap hash is for speed: it is checked on every request."""
    digest = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(f"{username}:{digest}\n")


def configure(machines: Mapping[str, Machine], state_dir: Path, username: str, password: str) -> Any:
    """Return the WSGI application that serves `machines` (by host[:port]).

    Once a process: sushy-tools has one application.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    auth_file = state_dir / "auth"
    _write_auth_file(auth_file, username, password)
    RackDriver.machines = machines
    fakedriver.FakeDriver = RackDriver
    systems = [{"uuid": m.uuid, "name": m.name, "power_state": "On", "nics": []} for m in machines.values()]
    app = main.app
    app.configure(
        extra_config={
            "SUSHY_EMULATOR_FAKE_DRIVER": True,
            "SUSHY_EMULATOR_FAKE_SYSTEMS": systems,
            "SUSHY_EMULATOR_STATE_DIR": str(state_dir),
            "SUSHY_EMULATOR_AUTH_FILE": str(auth_file),
        }
    )
    replaced: dict[str, Callable[..., Any]] = {
        "bios": _bios_view,
        "bios_settings": _settings_view,
        "bios_attribute_registry_file": _registry_file_view,
        "bios_registry": _registry_view,
        "UpdateService.update_service_resource": _update_service_view,
        "UpdateService.update_service_simple_update": _simple_update_view,
        "simple_task_service": _task_service_view,
        "simple_task": _task_view,
    }
    for endpoint, view in replaced.items():
        app.view_functions[endpoint] = _checked(view)
    for endpoint in ("system_reset_action", "system_resource"):
        app.view_functions[endpoint] = _checked(app.view_functions[endpoint])
    added: dict[str, Callable[..., Any]] = {
        INVENTORY: _inventory_view,
        f"{INVENTORY}/<component>": _component_view,
        TASKS: _tasks_view,
        f"{TASKS}/<task>": _task_view,
    }
    for path, view in added.items():
        app.add_url_rule(path, f"rack_{view.__name__}", _checked(view), methods=["GET"])
    app.after_request(_amend)
    return app
