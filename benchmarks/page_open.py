"""How long a browser waits for the page of a long journal, from the address to its charts.

    python benchmarks/big_journal.py --dir .bench-watch --keep
    python benchmarks/page_open.py .bench-watch [--times 3]

A new server and a new browser each time, started together as `penstock watch` does it; then the
same page once more from the server that knows it. Chromium and Playwright, as for the tests.
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LIMIT_MS = 120_000


def opened_s(browser: Browser, address: str) -> float:
    """Until a chart is drawn and the table of causes is there."""
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("canvas", timeout=LIMIT_MS)
    page.wait_for_function("document.body.innerText.includes('wall-clock')", timeout=LIMIT_MS)
    took_s = time.perf_counter() - began
    page.close()
    return took_s


def once(folder: str, run: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "penstock", "watch", "--dir", folder, "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        found = re.search(r"http\S+", server.stdout.readline())
        assert found, "no address was printed"
        address = f"{found[0].rstrip('/')}/?run={run}"
        try:
            with sync_playwright() as play:
                browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                first_s, again_s = opened_s(browser, address), opened_s(browser, address)
                browser.close()
        finally:
            server.terminate()
    return first_s, again_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="where the run is")
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    run = next(path.name for path in Path(given.folder).iterdir() if (path / "journal").is_dir())
    firsts, agains = zip(*(once(given.folder, run) for _ in range(given.times)), strict=True)
    print(f"first page {statistics.median(firsts):.2f} s ({min(firsts):.2f} to {max(firsts):.2f})")
    print(f"once more  {statistics.median(agains):.2f} s")


if __name__ == "__main__":
    main()
