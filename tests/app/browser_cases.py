"""A real browser for what only a browser can tell; tests with it are skipped where there is none."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = pytest.mark.skipif(BROWSER is None, reason="no chromium to look at pages with: install chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=2000"),
)


def browse(page: Path, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """Return the document as it stands after loading, and what was said on the console."""
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", *flags, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def without_policy(text: str) -> str:
    """Return a page on which a script may run that is not its own."""
    return re.sub(r"<meta http-equiv[^>]*>", "", text)
