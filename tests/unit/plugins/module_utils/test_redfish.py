# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The Redfish client, against scripted answers."""

from __future__ import annotations

import email.message
import http.client
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
        ("GET", refusal(503, Retry_After="²"), [0.5]),
        ("POST", refusal(503), [0.5]),
        ("GET", reset_by_peer(), [0.5]),
        ("PATCH", reset_by_peer(), [0.5]),
        ("POST", urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")), [0.5]),
    ],
    ids=[
        "busy",
        "busy with a time",
        "busy for long",
        "busy with no number",
        "busy POST",
        "reset GET",
        "reset PATCH",
        "refused POST",
    ],
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


ODD = "Update the BMC's firmware: its collection does not follow Redfish."


@pytest.mark.parametrize(
    ("body", "observed"),
    [
        ({"Members": None}, "Members is None, not a list"),
        ({"value": [1]}, "Members is None, not a list"),
        ({"Members": {"a": 1}}, "Members is {'a': 1}, not a list"),
        ({"Members": [None]}, "a member is None, not a link"),
        ({"Members": [{}]}, "a member is {}, not a link"),
        ({"Members": [{"@odata.id": 5}]}, "a member is {'@odata.id': 5}, not a link"),
        ({"Members": [{"@odata.id": "x"}]}, "a member is {'@odata.id': 'x'}, not a link"),
        ({"Members": [], "Members@odata.nextLink": 5}, "the link to the next page is 5"),
        ({"Members": [], "Members@odata.nextLink": "/x"}, "the pages do not end, /x is the next"),
    ],
)
def test_a_collection_of_another_shape_is_an_error(body: Any, observed: str) -> None:
    with pytest.raises(RedfishError) as caught:
        Script(Answer(body)).bmc().members("/x")
    assert str(caught.value) == f"GET /x on BMC bmc1: {observed}. {ODD}"


def test_pages_in_a_circle_end() -> None:
    script = Script(collection("/a", more="/2"), collection("/b", more="/x"))
    with pytest.raises(RedfishError, match="GET /2 on BMC bmc1: the pages do not end, /x is the next"):
        script.bmc().members("/x")


def test_pages_without_end_are_left() -> None:
    script = Script(*[collection(more=f"/{n}") for n in range(1001)])
    with pytest.raises(RedfishError, match="the pages do not end, /999 is the next"):
        script.bmc().members("/x")
    assert len(script.requests) == 1000


def test_an_empty_collection_may_only_count() -> None:
    assert Script(Answer({"Members@odata.count": 0})).bmc().members("/x") == []


def test_a_link_that_would_name_another_host_is_not_followed() -> None:
    script = Script()
    with pytest.raises(RedfishError) as caught:
        script.bmc().get("@evil.example/x")
    assert str(caught.value) == (
        "GET @evil.example/x on BMC bmc1: not an absolute path. Update the BMC: its links must begin with '/'."
    )
    assert script.requests == []


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (
            http.client.InvalidURL("nonnumeric port: 'a'"),
            "not a usable address (nonnumeric port: 'a'). Give the option address as host or host:port.",
        ),
        (
            ValueError("Invalid IPv6 URL"),
            "not a usable address (Invalid IPv6 URL). Give the option address as host or host:port.",
        ),
        (
            http.client.BadStatusLine("SSH-2.0"),
            "the answer is not HTTP (BadStatusLine('SSH-2.0')). "
            "Check that this address is a Redfish service over HTTPS.",
        ),
        (
            http.client.LineTooLong("header"),
            "the answer is not HTTP (LineTooLong('got more than 65536 bytes when reading header')). "
            "Check that this address is a Redfish service over HTTPS.",
        ),
    ],
)
def test_what_is_no_redfish_service_is_named(failure: Exception, told: str) -> None:
    script = Script(failure)
    with pytest.raises(RedfishError) as caught:
        script.bmc().get("/x")
    assert str(caught.value) == f"GET /x on BMC bmc1: {told}"
    assert script.slept == []


def test_json_too_deep_is_an_error() -> None:
    with pytest.raises(RedfishError) as caught:
        Script(Answer(b"[" * 100000)).bmc().get("/x")
    assert str(caught.value) == (
        f"GET /x on BMC bmc1: the answer is not JSON: {'[' * 200}. Check that this address is a Redfish service."
    )


class Broken(io.BytesIO):
    """A body whose connection breaks."""

    def read(self, *_args: Any) -> bytes:
        raise http.client.IncompleteRead(b"x")


def test_a_refusal_whose_explanation_breaks_off_keeps_its_status() -> None:
    failure = urllib.error.HTTPError("https://bmc1/x", 401, "no", email.message.Message(), Broken())
    with pytest.raises(RedfishError) as caught:
        Script(failure).bmc().get("/x")
    assert caught.value.status == 401
    assert str(caught.value) == (
        "GET /x on BMC bmc1: HTTP 401: its explanation broke off (IncompleteRead). "
        "Check username and password of the BMC account."
    )


def test_an_explanation_too_deep_is_shown_raw() -> None:
    assert extended_message(b"[" * 100000) == "[" * 300
