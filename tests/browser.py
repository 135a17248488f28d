"""Opens a page in a headless Chromium (QtWebEngine's), in a process of its own.

    python tests/browser.py PAGE WIDTH SCRIPT

prints, as JSON, what the page said on its console, what it asked the network for, and the
value of SCRIPT. Tests call `look`.
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_HEIGHT = 844
# Chromium's sandbox does not work for root, in containers and in CI.
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")


@dataclasses.dataclass
class Seen:
    """What a page did: lines on its console, addresses it asked for, the script's value."""

    console: list[str]
    requests: list[str]
    value: Any


def look(page: Path, script: str, *, width: int = 1440, scheme: str = "light") -> Seen:
    """Opens a page and evaluates a script in it once it is drawn."""
    dark = f"preferredColorScheme={0 if scheme == 'dark' else 1}"
    environment = {
        **os.environ,
        "QT_QPA_PLATFORM": "offscreen",
        "QTWEBENGINE_CHROMIUM_FLAGS": " ".join([*_FLAGS, f"--blink-settings={dark}"]),
    }
    done = subprocess.run(
        [sys.executable, __file__, str(page), str(width), script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (
        "the browser did not start. On a bare Debian it needs: apt-get install libnss3 libegl1 "
        "libgl1 libgbm1 libasound2 libxkbcommon0 libxkbfile1 libxcomposite1 libxdamage1 "
        "libxrandr2 libxtst6 libxcb-dri3-0 libdbus-1-3 libfontconfig1 libglib2.0-0\n"
        f"{done.stderr[-2000:]}"
    )
    return Seen(**json.loads(done.stdout.splitlines()[-1]))


def main(page: str, width: str, script: str) -> None:
    """Prints what `look` reads."""
    from PyQt6.QtCore import QTimer, QUrl
    from PyQt6.QtWebEngineCore import (
        QWebEnginePage,
        QWebEngineProfile,
        QWebEngineUrlRequestInterceptor,
    )
    from PyQt6.QtWebEngineWidgets import QWebEngineView
    from PyQt6.QtWidgets import QApplication

    console, requests = [], []

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(self, level, message, line, source):
            console.append(f"{message} (line {line})")

    class Requests(QWebEngineUrlRequestInterceptor):
        def interceptRequest(self, info):
            requests.append(info.requestUrl().toString())

    application = QApplication(sys.argv[:1])
    profile, interceptor = QWebEngineProfile(), Requests()
    profile.setUrlRequestInterceptor(interceptor)
    view = QWebEngineView()
    view.resize(int(width), _HEIGHT)
    shown = Page(profile, view)
    view.setPage(shown)
    view.show()

    def tell(value):
        seen = {"console": console, "requests": requests, "value": json.loads(value or "null")}
        print(json.dumps(seen), flush=True)
        os._exit(0)  # Qt's own way out waits for its processes, and warns

    def evaluate(loaded):
        assert loaded, page
        wrapped = f"JSON.stringify((() => {{ {script} }})())"
        # A moment for the first frames.
        QTimer.singleShot(300, lambda: shown.runJavaScript(wrapped, tell))

    shown.loadFinished.connect(evaluate)
    shown.load(QUrl.fromLocalFile(str(Path(page).resolve())))
    application.exec()


if __name__ == "__main__":
    main(*sys.argv[1:])
