"""A headless chromium for tests, spoken to over its debugging pipe; needs no package.

`Browser` owns the process and its profile folder; `Page` is one tab with a storage of its own,
which notes every request and every error. Waiting happens inside the page. Source: the DevTools
protocol, domains Target, Page, Runtime, Network, Log, Emulation, Input and DOM.
"""

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, Final, Self

CHROMIUM: Final = shutil.which("chromium")
REPLY_TIMEOUT_S: Final = 120.0
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# The browser reads commands from descriptor 3 and writes to 4.
LAUNCHER: Final = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 3); os.dup2(w, 4);"
    "os.execv(sys.argv[3], sys.argv[3:])"
)
KEY_CODES: Final = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowDown": 40, "ArrowUp": 38, " ": 32}
WAIT: Final = """new Promise((resolve, reject) => {
  const end = performance.now() + %d;
  const check = () => {
    let value;
    try { value = (%s); } catch (error) { value = false; }
    if (value) resolve(value);
    else if (performance.now() > end) reject(new Error("never true: " + %s));
    else setTimeout(check, 10);
  };
  check();
})"""


class BrowserFailure(Exception):
    """The browser answered a command with an error, or a script in the page threw."""


class Browser:
    """One browser process; a context manager."""

    def __init__(self) -> None:
        if CHROMIUM is None:
            raise BrowserFailure("chromium is not installed")
        self._folder = Path(tempfile.mkdtemp(prefix="ninfer-browser-"))
        command_end, self._commands = _pipe()
        self._replies, reply_end = _pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", LAUNCHER, str(command_end), str(reply_end), CHROMIUM),
                *(*FLAGS, f"--user-data-dir={self._folder}"),
            ],
            pass_fds=(command_end, reply_end),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_end)
        os.close(reply_end)
        self._ids = itertools.count(1)
        self._buffer = b""
        self._events: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and remove its folder. Idempotent."""
        if self._process.poll() is None:
            with contextlib.suppress(BrowserFailure, OSError):
                self.call("Browser.close")
            try:
                self._process.wait(REPLY_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            os.close(self._commands)
            os.close(self._replies)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Run one command and return its result.

        Raises:
            BrowserFailure: the command failed, or the browser is gone.
        """
        number = next(self._ids)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next_message()
            if reply.get("id") == number:
                break
            self._events[reply.get("sessionId", "")].append(reply)
        if "error" in reply:
            raise BrowserFailure(f"{method}: {reply['error']['message']}")
        result: dict[str, Any] = reply["result"]
        return result

    def events(self, session: str, method: str) -> list[dict[str, Any]]:
        """Parameters of the events of one kind so far."""
        return [event["params"] for event in self._events[session] if event["method"] == method]

    def forget_events(self, session: str) -> None:
        """Drop what was noted of a tab so far."""
        self._events.pop(session, None)

    def _next_message(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._replies], [], [], REPLY_TIMEOUT_S)
            data = os.read(self._replies, 1 << 16) if ready else b""
            if not data:
                raise BrowserFailure("the browser does not answer")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        parsed: dict[str, Any] = json.loads(message)
        return parsed


class Page:
    """One tab."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call(
            "Target.createTarget", url="about:blank", browserContextId=self._context
        )["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def open(self, url: str, *, width: int = 1280, height: int = 800) -> None:
        """Start over at an address: nothing stored there, nothing noted, a light system."""
        self.call("Storage.clearDataForOrigin", origin=url.rstrip("/"), storageTypes="all")
        self._browser.forget_events(self._session)
        self.resize(width, height)
        self.prefer_colours("light")
        self.go(url)

    def close(self) -> None:
        """Close the tab and forget its storage."""
        self._browser.call("Target.disposeBrowserContext", browserContextId=self._context)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Run a command of this tab."""
        return self._browser.call(method, self._session, **params)

    def go(self, url: str) -> None:
        """Open an address and wait until the document is complete."""
        self.call("Page.navigate", url=url)
        self.wait_for(f"document.readyState === 'complete' && location.href.startsWith({url!r})")

    def reload(self) -> None:
        """Load the page again."""
        self.evaluate("window.isOld = true")
        self.call("Page.reload")
        self.wait_for("!window.isOld && document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        """Set the size of the view; narrow ones have a touch screen's manners."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=width < 600)

    def prefer_colours(self, scheme: str) -> None:
        """Act as a system set to ``light`` or ``dark``, and to little motion, which costs time."""
        colours = {"name": "prefers-color-scheme", "value": scheme}
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.call("Emulation.setEmulatedMedia", features=[colours, motion])

    def evaluate(self, expression: str) -> Any:
        """Value of an expression, promises awaited.

        Raises:
            BrowserFailure: the expression threw.
        """
        reply = self.call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in reply:
            details = reply["exceptionDetails"]
            raise BrowserFailure(details.get("exception", {}).get("description", details["text"]))
        return reply["result"].get("value")

    def run(self, body: str, *arguments: object) -> Any:
        """Value that an asynchronous function body returns for ``args``."""
        return self.evaluate(f"(async (args) => {{{body}}})({json.dumps(arguments)})")

    def wait_for(self, condition: str, timeout_s: float = 60.0) -> Any:
        """Wait until an expression is true and return its value."""
        while True:
            try:
                return self.evaluate(WAIT % (timeout_s * 1000, condition, json.dumps(condition)))
            except BrowserFailure as failure:
                # A navigation throws away the page the promise lived in.
                if not any(word in str(failure) for word in ("navigated", "destroyed", "context")):
                    raise

    def text(self, selector: str) -> str:
        """Visible text of the last element that matches."""
        text: str = self.run(
            "return [...document.querySelectorAll(args[0])].at(-1).innerText", selector
        )
        return text

    def count(self, selector: str) -> int:
        """How many elements match and are shown."""
        number: int = self.run(
            """return [...document.querySelectorAll(args[0])]
              .filter((node) => node.checkVisibility()).length""",
            selector,
        )
        return number

    def click(self, selector: str) -> None:
        """Click the middle of the last element that matches, as a mouse would."""
        x, y = self.run(
            """const node = [...document.querySelectorAll(args[0])].at(-1);
            node.scrollIntoView({block: "nearest", behavior: "instant"});
            const box = node.getBoundingClientRect();
            const at = [box.x + box.width / 2, box.y + box.height / 2];
            const hit = document.elementFromPoint(...at);
            if (!node.contains(hit)) throw new Error(args[0] + " is covered by " + hit?.outerHTML);
            return at;""",
            selector,
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Enter text where the focus is."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press and release a key; modifiers are 1 Alt, 2 Control, 8 Shift, added."""
        code = f"Key{key.upper()}" if key.isalpha() and len(key) == 1 else key
        number = KEY_CODES.get(key, ord(key[0].upper()))
        text = "\r" if key == "Enter" else key if len(key) == 1 and not modifiers & 3 else ""
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=code,
                modifiers=modifiers,
                windowsVirtualKeyCode=number,
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def choose_files(self, selector: str, *paths: Path) -> None:
        """Put files into a file field."""
        node = self.call("Runtime.evaluate", expression=f"document.querySelector({selector!r})")
        self.call(
            "DOM.setFileInputFiles",
            files=[str(path) for path in paths],
            objectId=node["result"]["objectId"],
        )

    def screenshot(self, path: Path) -> None:
        """Save a picture of the view."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    @property
    def requested_urls(self) -> list[str]:
        """Address of every request so far."""
        self.evaluate("0")
        events = self._browser.events(self._session, "Network.requestWillBeSent")
        return [event["request"]["url"] for event in events]

    @property
    def problems(self) -> list[str]:
        """Uncaught exceptions and logged errors, such as violations of the policy."""
        self.evaluate("0")
        thrown = self._browser.events(self._session, "Runtime.exceptionThrown")
        logged = self._browser.events(self._session, "Log.entryAdded")
        return [json.dumps(event["exceptionDetails"]) for event in thrown] + [
            event["entry"]["text"] for event in logged if event["entry"]["level"] == "error"
        ]


def _pipe() -> tuple[int, int]:
    """A pipe whose descriptors are out of the way of the ones the browser uses."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
