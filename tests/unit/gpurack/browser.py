# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A real headless Chromium, driven over its own debugging pipe: no driver program and no port."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Event = dict[str, Any]
OPTIONS = (
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "disable-dev-shm-usage",
    "remote-debugging-pipe",
    "hide-scrollbars",
    "no-first-run",
    "no-default-browser-check",
    "disable-extensions",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "host-resolver-rules='MAP * ~NOTFOUND'",
)
KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    " ": 32,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}


def chromium() -> str | None:
    """Return the path of Chromium, None where there is none."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Page:
    """One page. `requests` are the addresses it asked for, `problems` what its console and its policy complained of."""

    def __init__(self, path: str) -> None:
        """Start the browser with one empty page."""
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._number = 0
        self._buffer = b""
        self._stack = contextlib.ExitStack()
        place = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="gpurack-browser-", ignore_cleanup_errors=True)
        )
        to, back = Path(place, "to"), Path(place, "back")
        os.mkfifo(to)
        os.mkfifo(back)
        options = " ".join(f"--{option}" for option in OPTIONS)
        command = f'exec "$1" {options} --user-data-dir="$2/profile" about:blank 3<"$2/to" 4>"$2/back" 2>"$2/log"'
        self._process = subprocess.Popen(
            ["sh", "-c", command, "sh", path, place],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        # The shell opens its ends in this order too, and each waits for the other.
        self._to = self._stack.enter_context(to.open("wb", buffering=0))
        self._back = self._stack.enter_context(back.open("rb", buffering=0))
        target = self.call("Target.createTarget", url="about:blank", session=None)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True, session=None)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        """Return the page."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the browser."""
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self.call("Browser.close", session=None)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        self._stack.close()

    def call(self, method: str, session: str | None = "own", **params: Any) -> Any:
        """Send a command and return its result; what the page does meanwhile is kept."""
        self._number += 1
        message: Event = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = self._session
        self._to.write(json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self._take(answer)

    def _receive(self, deadline: float) -> Event:
        while b"\0" not in self._buffer:
            ready = select.select([self._back], [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                raise TimeoutError("chromium does not answer")
            part = self._back.read(1 << 16)
            if not part:
                raise RuntimeError("chromium has ended")
            self._buffer += part
        raw, _end, self._buffer = self._buffer.partition(b"\0")
        found: Event = json.loads(raw)
        return found

    def _take(self, event: Event) -> None:
        kind, data = event.get("method"), event.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(data["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(data["exceptionDetails"])[:600])
        elif kind == "Runtime.consoleAPICalled" and data["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(data["args"])[:600])
        elif kind == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
            self.problems.append(data["entry"]["text"])

    def open(self, file: Path, width: int = 1440, height: int = 900, dark: bool = False, fragment: str = "") -> None:
        """Load a file and wait until it is ready."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.colours(dark)
        self.call("Page.navigate", url="about:blank")
        self.requests.clear()
        self.call("Page.navigate", url=f"{file.resolve().as_uri()}{fragment}")
        self.until("document.readyState === 'complete' && location.protocol === 'file:'")

    def colours(self, dark: bool) -> None:
        """Choose what the system prefers."""
        value = "dark" if dark else "light"
        features = [
            {"name": "prefers-color-scheme", "value": value},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)

    def js(self, expression: str) -> Any:
        """Return what an expression is worth."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, condition: str, seconds: float = 30.0) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not self.js(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {condition}")
            time.sleep(0.02)

    def key(self, name: str, times: int = 1, shift: bool = False) -> None:
        """Press a key as a person does."""
        common: dict[str, Any] = {
            "key": name,
            "code": name,
            "windowsVirtualKeyCode": KEYS.get(name, 0),
            "modifiers": 8 if shift else 0,
        }
        text: dict[str, Any] = {"text": "\r"} if name == "Enter" else {}
        for _time in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **text, **common)
            self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, file: Path, whole: bool = False) -> None:
        """Store what is seen, or the whole page."""
        file.parent.mkdir(parents=True, exist_ok=True)
        shot = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **(self._all() if whole else {})
        )
        file.write_bytes(base64.b64decode(shot["data"]))

    def _all(self) -> Event:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}}

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])
