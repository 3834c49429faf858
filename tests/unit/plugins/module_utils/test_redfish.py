# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The Redfish client, against scripted answers."""

from __future__ import annotations

import email.message
import io
import json
import urllib.error
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._redfish import Bmc, RedfishError, extended_message

PARAMS = {
    "address": "bmc1",
    "username": "admin",
    "password": "hunter2",
    "validate_certs": True,
    "ca_path": None,
    "timeout": 5.0,
    "retries": 2,
}


class Answer(io.BytesIO):
    """What open_url returns."""

    def __init__(self, body: Any, status: int = 200, **headers: str) -> None:
        super().__init__(body if isinstance(body, bytes) else json.dumps(body).encode())
        self.status = status
        self.headers = headers


def refusal(code: int, body: Any = None, **headers: str) -> urllib.error.HTTPError:
    """Return an HTTP error."""
    message = email.message.Message()
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return urllib.error.HTTPError("https://bmc1/x", code, "no", message, io.BytesIO(json.dumps(body or {}).encode()))


class Script:
    """Stands in for open_url: gives the answers in turn and keeps the requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []
        self.slept: list[float] = []

    def __call__(self, url: str, **options: Any) -> Any:
        self.requests.append({"url": url, **options})
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def bmc(self) -> Bmc:
        """Return a client of the script."""
        return Bmc(PARAMS, self, self.slept.append)


def reset_by_peer() -> urllib.error.URLError:
    """Return what urllib raises when the BMC drops the connection."""
    return urllib.error.URLError(ConnectionResetError(104, "Connection reset by peer"))


def test_a_request_carries_what_a_bmc_needs() -> None:
    script = Script(Answer({"a": 1}, ETag='"7"'))
    answer = script.bmc().request("PATCH", "/redfish/v1/x", {"k": "v"}, '"6"')
    sent = script.requests[0]
    assert sent["url"] == "https://bmc1/redfish/v1/x"
    assert (sent["method"], sent["data"], sent["timeout"]) == ("PATCH", '{"k": "v"}', 5.0)
    assert sent["headers"]["If-Match"] == '"6"'
    assert (sent["url_username"], sent["force_basic_auth"], sent["validate_certs"]) == ("admin", True, True)
    assert (answer.etag, answer.body) == ('"7"', {"a": 1})


@pytest.mark.parametrize(
    ("method", "failure", "waits"),
    [
        ("GET", refusal(503), [0.5]),
        ("GET", refusal(503, Retry_After="7"), [7.0]),
        ("GET", refusal(503, Retry_After="9999"), [30.0]),
        ("POST", refusal(503), [0.5]),
        ("GET", reset_by_peer(), [0.5]),
        ("PATCH", reset_by_peer(), [0.5]),
        ("POST", urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")), [0.5]),
    ],
    ids=["busy", "busy with a time", "busy for long", "busy POST", "reset GET", "reset PATCH", "refused POST"],
)
def test_retried(method: str, failure: Exception, waits: list[float]) -> None:
    script = Script(failure, Answer({"ok": True}))
    assert script.bmc().request(method, "/x").body == {"ok": True}
    assert script.slept == waits


@pytest.mark.parametrize(
    ("method", "failure", "message"),
    [
        ("POST", reset_by_peer(), "POST /x on BMC bmc1: .*Connection reset by peer"),
        ("GET", refusal(401), "HTTP 401: .* Check username and password"),
        ("GET", refusal(404), "HTTP 404: .* Check that this BMC offers the resource"),
    ],
    ids=["reset POST may have been acted on", "wrong password", "missing"],
)
def test_not_retried(method: str, failure: Exception, message: str) -> None:
    script = Script(failure)
    with pytest.raises(RedfishError, match=message):
        script.bmc().request(method, "/x")
    assert script.slept == []


def test_a_bmc_that_stays_busy_is_left() -> None:
    script = Script(refusal(503), refusal(503), refusal(503))
    with pytest.raises(RedfishError, match="The BMC stayed busy") as caught:
        script.bmc().get("/x")
    assert caught.value.status == 503
    assert script.slept == [0.5, 1.0]


def test_the_password_is_in_no_message() -> None:
    body = {"error": {"@Message.ExtendedInfo": [{"Message": "Login admin:hunter2 is not valid."}]}}
    with pytest.raises(RedfishError, match=r"Login admin:\*\*\*\*\*\*\*\* is not valid\. Check") as caught:
        Script(refusal(401, body)).bmc().get("/x")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            b'{"error": {"@Message.ExtendedInfo": [{"Message": "A."}, {"Message": "B."}, {"Message": "A."}]}}',
            "A. B.",
        ),
        (b'{"error": {"message": "general", "@Message.ExtendedInfo": [{"MessageId": "iLO.2.15.X"}]}}', "iLO.2.15.X"),
        (b'{"error": {"message": "general"}}', "general"),
        (b'{"error": {"code": "Base.1.0.GeneralError"}}', "Base.1.0.GeneralError"),
        (b"<html>busy</html>", "<html>busy</html>"),
        (b'{"error": "text"}', '{"error": "text"}'),
        (b"", "no explanation"),
    ],
    ids=["messages once each", "only an id", "only a message", "only a code", "not JSON", "odd JSON", "empty"],
)
def test_extended_message(raw: bytes, said: str) -> None:
    assert extended_message(raw) == said


def test_an_answer_that_is_not_json_is_an_error() -> None:
    with pytest.raises(RedfishError, match="the answer is not JSON: <html>"):
        Script(Answer(b"<html>")).bmc().get("/x")


def test_an_empty_answer_is_an_empty_object() -> None:
    assert Script(Answer(b"", 204)).bmc().request("POST", "/x", {}).body == {}


def collection(*paths: str, more: str | None = None) -> Answer:
    """Return a collection."""
    body: dict[str, Any] = {"Members": [{"@odata.id": p} for p in paths]}
    if more:
        body["Members@odata.nextLink"] = more
    return Answer(body)


def test_members_over_pages() -> None:
    assert Script(collection("/a", more="/next"), collection("/b")).bmc().members("/x") == ["/a", "/b"]


def test_the_host_is_told_from_the_gpu_board() -> None:
    host = {"Id": "System.Embedded.1", "Bios": {"@odata.id": "/bios"}}
    script = Script(
        collection("/redfish/v1/Systems/HGX_Baseboard_0", "/redfish/v1/Systems/1"), Answer({"Id": "HGX"}), Answer(host)
    )
    assert script.bmc().system() == host


@pytest.mark.parametrize("count", [0, 2])
def test_a_system_that_is_not_certain_is_refused(count: int) -> None:
    systems = [Answer({"Id": str(n), "Bios": {"@odata.id": "/bios"}}) for n in range(count)]
    script = Script(collection(*[f"/redfish/v1/Systems/{n}" for n in range(count)]), *systems)
    with pytest.raises(RedfishError, match=f"{count} systems, {count} of them with a BIOS. Choose one with system_id"):
        script.bmc().system()
