"""A headless Chromium, driven through a pipe by the DevTools protocol, with the standard library alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INSTALL = "apt install chromium"


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One tab of a Chromium.

    `requests` and `errors` are the URLs that were asked for and the exceptions and messages on the console
    since the last `open`.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._buffer = b""
        self._number = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self._call("Target.createTarget", url="about:blank", session=None)["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True, session=None)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command of the protocol and return its result."""
        return self._call(method, session=self._session, **parameters)

    def open(self, page: Path, width: int = 1000, height: int = 800, dark: bool = False) -> None:
        """Load a page and wait until its model has run."""
        self.requests, self.errors = [], []
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_until_idle()

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, awaited if it is a promise."""
        done = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise AssertionError(done["exceptionDetails"]["exception"].get("description", "an exception"))
        return done["result"].get("value")

    def wait_until_idle(self) -> None:
        """Wait until the model has run on all changes, or the page says why it cannot."""
        problem = "document.getElementById('problem').textContent !== ''"
        done = f"!isRunning && (outputs.length > 0 || {problem})"
        self.wait(lambda: self.evaluate(f"document.readyState === 'complete' && {done}"))

    def wait(self, condition: Callable[[], object], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (self.errors, self.evaluate("document.body.innerText"))
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """Return the text that is shown of an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def drag(self, points: list[tuple[float, float]]) -> None:
        """Press the mouse at the first point, move it through the others, and release it at the last."""
        for i, (x, y) in enumerate(points):
            kind = "mouseMoved" if i else "mousePressed"
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        x, y = points[-1]
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)
        self.wait_until_idle()

    def choose_file(self, selector: str, file: Path) -> None:
        """Choose a file in a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def screenshot(self, file: Path) -> None:
        """Save a picture of the whole page."""
        import base64

        done = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(done["data"]))

    def _call(self, method: str, session: str | None, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._answers, 1 << 20)
            assert part, "Chromium has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(parameters["exceptionDetails"]["exception"].get("description", ""))
            case "Log.entryAdded":
                self.errors.append(parameters["entry"]["text"])


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a Chromium with a profile of its own; end it afterwards."""
    program = find_chromium()
    assert program is not None
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()
    with tempfile.TemporaryDirectory(prefix="burnt-chromium-", ignore_cleanup_errors=True) as profile:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
        ]
        # Chromium reads commands from the file descriptor 3 and writes answers to 4.
        redirected = f'exec "$0" "$@" 3<&{read_commands} 4>&{write_answers}'
        process = subprocess.Popen(
            ["bash", "-c", redirected, program, *flags, "about:blank"],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        try:
            yield Browser(commands, answers)
        finally:
            os.close(commands)  # ends Chromium
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
            os.close(answers)
