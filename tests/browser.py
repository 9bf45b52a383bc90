"""A real browser for tests of pages: headless Chromium, driven through its debugging pipe by what the standard library has."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MISSING = "no Chromium here: apt-get install chromium"
_FLAGS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--mute-audio", "--hide-scrollbars",
    "--force-color-profile=srgb", "--remote-debugging-pipe", "--disable-dev-shm-usage",
)  # fmt: skip
_LAUNCH = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(one), fcntl.F_DUPFD, 20) for one in sys.argv[1:3])
os.dup2(read, 3); os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_PATIENCE_S = 60.0


class Page:
    """One tab. `requests` are the URLs that it asked for, `problems` what its script and its policy complained about."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.requests: list[str] = []
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        """A command of the DevTools protocol; returns its result."""
        return self._browser.send(method, params, self._session)

    def open(self, path: Path, wide: int = 1280, high: int = 800) -> None:
        """Open a file from the disk."""
        self.resize(wide, high)
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete'")

    def resize(self, wide: int, high: int) -> None:
        """Give the page this size."""
        self.send("Emulation.setDeviceMetricsOverride", width=wide, height=high, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; raises what its script raises."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(json.dumps(found["exceptionDetails"])[:800])
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until it is true."""
        end = time.monotonic() + _PATIENCE_S
        while not self.evaluate(expression):
            assert time.monotonic() < end, expression
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """What is read at a place."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def box(self, selector: str) -> dict[str, float]:
        """Where the first part of an element is."""
        return self.evaluate(f"(({{x, y, width, height}}) => ({{x, y, width, height}}))(document.querySelector({json.dumps(selector)}).getClientRects()[0])")

    def hover(self, selector: str) -> None:
        """Move the pointer onto an element."""
        box = self.box(selector)
        self._mouse("mouseMoved", box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def click(self, selector: str) -> None:
        """Press an element with the pointer."""
        self.hover(selector)
        box = self.box(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, button="left", clickCount=1)

    def _mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def key(self, key: str, code: int = 0, text: str = "") -> None:
        """Press a key."""
        shown = {"text": text} if text else {}
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **shown)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def prefer(self, theme: str) -> None:
        """What the desktop prefers: dark or light."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])

    def screenshot(self) -> bytes:
        """The page as it is seen, PNG."""
        return b64decode(self.send("Page.captureScreenshot", format="png")["data"])

    def heard(self, event: dict[str, Any]) -> None:
        """Take an event of the protocol."""
        method, params = event["method"], event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:600])
        elif method == "Log.entryAdded":
            self.problems.append(params["entry"]["text"])


class Browser:
    """Chromium with a new, empty profile."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        flags = [*_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else []), f"--user-data-dir={profile}"]
        command = [sys.executable, "-c", _LAUNCH, str(theirs_in), str(theirs_out), CHROMIUM, *flags]
        self._process = subprocess.Popen(
            command, pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._rest = b""
        self._count = 0
        self._pages: dict[str, Page] = {}

    def page(self) -> Page:
        """A new tab."""
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        self._pages[session] = made = Page.__new__(Page)
        made.__init__(self, session)  # type: ignore[misc]  # it is told of events while it enables them
        return made

    def send(self, method: str, params: dict[str, Any] | None = None, session: str = "") -> Any:
        """Send a command and wait for its answer."""
        self._count += 1
        number = self._count
        command = {"id": number, "method": method, "params": params or {}, **({"sessionId": session} if session else {})}
        os.write(self._out, json.dumps(command).encode() + b"\0")
        while True:
            message = self._read()
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            page = self._pages.get(message.get("sessionId", ""))
            if page is not None and "method" in message and hasattr(page, "problems"):
                page.heard(message)

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._in, 1 << 16) if ready else b""
            assert data, "Chromium does not answer"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def close(self) -> None:
        """End it."""
        os.close(self._out)  # it ends when its pipe does
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser, ended and its profile removed afterwards."""
    folder = tempfile.mkdtemp(prefix="specview-chromium-")
    made = Browser(Path(folder))
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)
