"""Pictures of the page for the docs: scripts/pictures.py ADDRESS [RUN…]; needs scripts/browser.sh.

ADDRESS is what `penstock watch` printed. Of the first run: light, dark and on a phone; of several
together: compared; and the list of all.
"""

import shutil
import sys
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

OUT = Path(__file__).parents[1] / "docs" / "pictures"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
TALL, WIDE = {"width": 1180, "height": 1760}, {"width": 1180, "height": 1240}
PHONE = {"width": 390, "height": 844}


def main(address: str, runs: list[str]) -> None:
    one = [("run", run) for run in runs[:1]]
    wanted = [
        ("watch-light", one, "light", TALL),
        ("watch-dark", one, "dark", TALL),
        ("watch-phone", one, "light", PHONE),
        ("watch-runs", [], "light", WIDE),
        ("watch-compare", [("run", run) for run in runs], "light", WIDE),
    ]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, query, theme, size in wanted[: 5 if len(runs) > 1 else 4]:
            page = browser.new_page(viewport=size, color_scheme=theme)
            page.goto(f"{address}?{urlencode(query)}")
            page.wait_for_selector("#page[data-seen]", timeout=120_000)
            page.wait_for_timeout(1500)  # bars and cells move to their places
            page.screenshot(path=OUT / f"{name}.png", full_page=size is PHONE)
            page.close()
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
