"""The page in a real browser: on a run of real processes, and on runs made to be difficult."""

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from made_run import T0, made_run
from penstock import style
from penstock.launch.supervisor import preload
from penstock.ledger.journal.read import read_events
from penstock.ledger.journal.records import file_name
from penstock.ledger.journal.writer import Journal, SupervisorJournal
from penstock.run.folder import RunFolder
from penstock.watch.web.run_cache import RunCache
from penstock.watch.web.server import PageServer, open_server

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
ARGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
LONG_MS = 120_000  # the machine may be busy
BEYOND = """step => Number(document.querySelector(".figure b").firstChild.data
  .replace(/,/g, "")) > step"""
# On a busy machine a rank may be slow and is well all the same.
WORKS = '.rank[data-rank="1"]:is([data-state="fine"], [data-state="slow"])'
HOSTILE = "<img src=x onerror=window.bad=1>"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: scripts/browser.sh installs it"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield found
        found.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., PageServer]]:
    servers: list[PageServer] = []

    def start(root: Path, token: str | None = None, port: int = 0) -> PageServer:
        server = open_server(RunCache(str(root)), port=port, token=token)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        if not server.closing.is_set():
            server.close()


@contextmanager
def page_of(browser: Any, address: str, width: int = 1280, **more: Any) -> Iterator[Any]:
    """A page that has been drawn; at the end, nothing may have gone wrong or gone elsewhere."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **more)
    page = context.new_page()
    page.set_default_timeout(LONG_MS)
    wrong: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.wait_for_selector("#page[data-seen]")
    yield page
    assert wrong == []
    here = address.split("?")[0]
    assert [url for url in asked if not url.startswith((here, "data:"))] == []
    context.close()


def number(page: Any, name: str) -> float:
    """The big figure of that name."""
    figure = page.locator(".figure", has_text=name).first.locator("b")
    return float(figure.inner_text().split()[0].replace(",", ""))


def no_sideways_scroll(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@contextmanager
def training(run_file: Path) -> Iterator[RunFolder]:
    """A run of real processes, which outlasts the test unless it is ended."""
    with open(os.devnull, "r+") as nothing:
        nowhere = dict.fromkeys(range(3), nothing.fileno())
        process = preload.python_m(["penstock", "train", str(run_file)], os.environ, nowhere)
    try:
        yield RunFolder(run_file.parent / "runs" / run_file.stem)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def pid_of(folder: RunFolder, rank: int) -> int:
    events = read_events(folder.journal / file_name(0, range(rank, rank + 1), "events"))
    return int(next(str(e.payload["pid"]) for e in events if e.kind == "start"))


FORMATS = {
    "formatDuration": style.format_duration,
    "formatCount": style.format_count,
    "formatBytes": style.format_bytes,
    "formatEnergy": style.format_energy,
    "formatMass": style.format_mass,
    "formatUsd": style.format_usd,
    "formatLoss": style.format_loss,
    "formatPercent": style.format_percent,
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_page_formats_numbers_as_the_terminal_does(
    name: str, browser: Any, serve: Callable[..., PageServer], tmp_path: Path
) -> None:
    values = [0, 7, 999, 1023, 1024, 59.6, 3599.7, 86399.9, 2.675, 0.0042, 0.0961]
    values += [factor * 10**power for power in range(-1, 16) for factor in (1.2346, 9.9949, 9.996)]
    if name == "formatBytes":
        values = [int(value) for value in values]
    with page_of(browser, serve(tmp_path).address()) as page:
        code = (
            "async ([name, values]) => { const formats = await import('/static/format.js'); "
            "return values.map((value) => formats[name](value)); }"
        )
        shown = page.evaluate(code, [name, values])
    assert dict(zip(values, shown, strict=True)) == {v: FORMATS[name](v) for v in values}


def test_the_page_has_the_cause_colours_of_every_other_face(
    browser: Any, serve: Callable[..., PageServer], tmp_path: Path
) -> None:
    with page_of(browser, serve(tmp_path).address(), color_scheme="dark") as page:
        code = (
            "async (names) => { const { color } = await import('/static/dom.js'); "
            "return names.map((name) => color(name)); }"
        )
        shown = page.evaluate(code, list(style.CAUSE_COLOURS))

    def rgb(hexadecimal: str) -> str:
        return f"rgb({', '.join(str(int(hexadecimal[i : i + 2], 16)) for i in (1, 3, 5))})"

    assert shown == [rgb(colour.dark) for colour in style.CAUSE_COLOURS.values()]


def test_a_live_run_moves_and_a_killed_rank_turns_red_and_green_again(
    browser: Any, serve: Callable[..., PageServer], run_file: Callable[..., Path], tmp_path: Path
) -> None:
    fields = {"layout.replicate": 2, "train.steps": 200_000, "evaluate.every": "100 steps"}
    file = run_file("live", **fields, **{"cluster.accelerators": 2})
    (tmp_path / "runs").mkdir()
    with training(file) as folder:
        while not (folder.journal / file_name(0, range(1), "events")).exists():
            threading.Event().wait(0.1)
        with page_of(browser, serve(tmp_path / "runs").address("live")) as page:
            page.wait_for_selector(WORKS)
            page.wait_for_selector("#curve canvas")
            assert page.locator(".pill").inner_text() == "running"

            # Charts move.
            step = number(page, "step")
            drawn = page.evaluate("document.querySelector('#curve canvas').toDataURL()")
            page.wait_for_function(BEYOND, arg=step + 20)
            assert page.evaluate("document.querySelector('#curve canvas').toDataURL()") != drawn
            assert page.locator("#where canvas").count() == 1

            # Plan against actual.
            compute = page.locator('#plan [data-cause="compute"]')
            assert compute.locator(".bar i").is_visible()
            assert compute.locator("span.n").first.inner_text().endswith(" s")  # as planned
            assert page.locator("#plan .bar u").first.is_visible()  # the plan's mark
            assert "planned" in page.locator("#plan .says").inner_text()

            # Every colour that the rank takes from now on.
            page.evaluate(
                """() => { const cell = document.querySelector('.rank[data-rank="1"]');
                window.seen = [];
                new MutationObserver(() => window.seen.push(cell.dataset.state)).observe(cell,
                  { attributes: true, attributeFilter: ["data-state"] }); }"""
            )
            os.kill(pid_of(folder, 1), signal.SIGKILL)
            page.wait_for_selector('.rank[data-rank="1"][data-state="down"]')
            red = page.eval_on_selector(
                '.rank[data-rank="1"]', "cell => getComputedStyle(cell).backgroundColor"
            )
            page.wait_for_selector(WORKS)
            assert "down" in page.evaluate("window.seen")
            page.wait_for_selector("#story li")
            assert "SIGKILL" in page.locator("#story li").first.inner_text()
            assert "back after" in page.locator("#story li").first.inner_text()
            green = page.eval_on_selector(WORKS, "cell => getComputedStyle(cell).backgroundColor")
            assert red != green
            page.wait_for_function(BEYOND, arg=number(page, "step") + 1)  # and it goes on


def test_text_of_a_run_is_never_markup_in_the_report(
    browser: Any, serve: Callable[..., PageServer], tmp_path: Path
) -> None:
    folder = made_run(tmp_path, HOSTILE, killed_at=30)
    supervisor = SupervisorJournal(folder.journal)
    supervisor.event(HOSTILE, t=T0 + 90, attempt=1, what=HOSTILE)
    supervisor.event("fault", t=T0 + 91, attempt=1, rank=0, reason=HOSTILE, action=HOSTILE)
    with Journal(folder.journal, 2) as journal:
        journal.span("evaluate", T0 + 92, T0 + 93, prompt=HOSTILE, sample=f"<script>{HOSTILE}")
    made_run(tmp_path, "<script>window.bad=1")
    server = serve(tmp_path)
    for runs in ((HOSTILE,), (), (HOSTILE, "<script>window.bad=1")):
        with page_of(browser, server.address(*runs)) as page:
            assert HOSTILE in page.locator("main").inner_text()
            assert page.evaluate("window.bad") is None
            assert page.locator("main img, main script").count() == 0


def test_a_thousand_ranks_fit_and_the_slow_one_shows(
    browser: Any, serve: Callable[..., PageServer], tmp_path: Path
) -> None:
    folder = made_run(tmp_path, "many", steps=5, ranks=1000, ended=None)
    supervisor = SupervisorJournal(folder.journal)
    slow = {"rank": 517, "factor": 1.6, "slow": True}
    supervisor.event("straggler", t=T0 + 60, attempt=0, **slow)
    supervisor.event("lost", t=T0 + 61, attempt=0, ranks=[3, 3], rank=3, reason="gone", since=T0)
    with (
        folder.lock(),
        page_of(browser, serve(tmp_path).address("many"), width=390) as page,
    ):
        assert page.locator("#ranks .ranks .rank").count() == 1000
        states = page.eval_on_selector_all(
            ".ranks .rank", "cells => cells.map(c => c.dataset.state)"
        )
        assert [rank for rank, state in enumerate(states) if state == "slow"] == [517]
        assert [rank for rank, state in enumerate(states) if state == "down"] == [3]
        assert no_sideways_scroll(page)
        box = page.locator("#ranks .ranks").bounding_box()
        assert box["height"] <= 340
        page.hover('.rank[data-rank="517"]')
        assert "1.6 times" in page.locator("#ranks .told").inner_text()


def test_a_phone_shows_everything_without_scrolling_sideways(
    browser: Any, serve: Callable[..., PageServer], tmp_path: Path
) -> None:
    made_run(tmp_path, "a-run-with-" + 8 * "quite-a-long-name-", killed_at=30)
    made_run(tmp_path, "b")
    made_run(tmp_path, "running", ended=None)
    empty = RunFolder(tmp_path / "empty")
    empty.make()
    empty.run_file.write_text('name = "empty"\n[model]\npreset = "llama-3m"\n')
    server = serve(tmp_path)
    names = list(server.cache.runs())
    for runs in ([], *([name] for name in names), names):
        with page_of(browser, server.address(*runs), width=390) as page:
            assert no_sideways_scroll(page), runs


def test_light_and_dark_by_the_system_or_by_hand(
    browser: Any, serve: Callable[..., PageServer], tmp_path: Path
) -> None:
    made_run(tmp_path)
    address = serve(tmp_path).address("made")
    paper = "getComputedStyle(document.body).backgroundColor"
    with page_of(browser, address, color_scheme="light") as page:
        light = page.evaluate(paper)
    with page_of(browser, address, color_scheme="dark") as page:
        dark = page.evaluate(paper)
        assert dark != light
        line = "document.querySelector('#curve canvas').toDataURL()"
        before = page.evaluate(line)
        page.click("#theme")
        assert page.evaluate(paper) == light
        assert page.evaluate(line) != before  # the charts take part
        page.reload()
        page.wait_for_selector("#page[data-seen]")
        assert page.evaluate(paper) == light


def test_from_the_list_to_several_beside_each_other(
    browser: Any, serve: Callable[..., PageServer], tmp_path: Path
) -> None:
    made_run(tmp_path, "a")
    other = made_run(tmp_path, "b", steps=20)
    other.run_file.write_text(other.run_file.read_text().replace("steps = 100", "steps = 20"))
    with page_of(browser, serve(tmp_path, token="a secret").address()) as page:
        assert "secret" not in page.url
        page.check('input[aria-label="compare a"]')
        page.check('input[aria-label="compare b"]')
        page.click(".go")
        page.wait_for_selector("#numbers td")
        assert page.locator("#curve canvas").count() == 1
        assert "dots: validation" in page.locator("#curve").inner_text()
        assert page.locator("#numbers .best").count() > 0
        assert page.locator("tr:has-text('loss') .best").count() == 1  # the longer run's
        assert "different tokenizers" not in page.locator("#numbers").inner_text()
        assert page.locator("#numbers thead th").all_inner_texts()[1:] in (["a", "b"], ["b", "a"])
        assert "train.steps" in page.locator("#fields").inner_text()
        page.click(".chip a >> nth=0")
        page.wait_for_selector("#story .lane")
        for chart in ("curve", "rate", "gradient"):
            assert int(page.locator(f"#{chart} .chart").get_attribute("data-points")) >= 20
        assert "clipped to 1" in page.locator("#gradient").inner_text()


def test_losses_of_other_tokenizers_have_no_best(
    browser: Any, serve: Callable[..., PageServer], tmp_path: Path
) -> None:
    for name, steps in (("a", 40), ("b", 20)):
        folder = made_run(tmp_path, name, steps=steps)
        plan = folder.read_plan() | {"tokenizer": f"of {name}"}
        folder.plan_file.write_text(json.dumps(plan))
    with page_of(browser, serve(tmp_path).address("a", "b")) as page:
        page.wait_for_selector("#numbers td.best")  # speed and shares are compared as ever
        assert page.locator("tr:has-text('loss') .best").count() == 0
        assert "the losses cannot be compared" in page.locator("#numbers").inner_text()


def test_losses_of_other_objectives_have_no_best(
    browser: Any, serve: Callable[..., PageServer], tmp_path: Path
) -> None:
    for name, objective in (("a", "dpo"), ("b", "simpo")):
        folder = made_run(tmp_path, name, steps=40 if name == "a" else 20)
        text = folder.run_file.read_text().replace('preset = "llama-3m"', 'from = "hf:org/name"')
        folder.run_file.write_text(f'{text}objective = "{objective}"\n')
        with Journal(folder.journal, 1, range(1)) as journal:
            journal.event("rewards", step=1, chosen=1.0, rejected=0.0, accuracy=0.75)
    with page_of(browser, serve(tmp_path).address("a", "b")) as page:
        page.wait_for_selector("#numbers td.best")
        assert page.locator("tr:has-text('loss') .best").count() == 0
        assert "different objectives" in page.locator("#numbers").inner_text()
        assert page.locator("tr:has-text('accuracy') td").all_inner_texts()[1:] == ["75.0%"] * 2


def test_a_page_left_open_finds_its_server_again(
    browser: Any, serve: Callable[..., PageServer], tmp_path: Path
) -> None:
    folder = made_run(tmp_path, ended=None)
    first = serve(tmp_path)
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(LONG_MS)
    page.goto(first.address("made"))
    page.wait_for_selector(".pill >> text=killed")
    first.close()
    page.wait_for_selector('#link[data-state="lost"]')
    assert page.locator(".figure").count() > 5  # what was known stays
    SupervisorJournal(folder.journal).event("ended", t=T0 + 90, result="done", error="")
    serve(tmp_path, port=first.port)
    page.wait_for_selector('#link[data-state="live"]')
    page.wait_for_selector(".pill >> text=done")
    context.close()


def test_an_unknown_run_is_an_error_on_the_page(
    browser: Any, serve: Callable[..., PageServer], tmp_path: Path
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(serve(tmp_path).address("nowhere"))
    page.wait_for_selector("main .note", timeout=LONG_MS)
    assert "no run 'nowhere'" in page.locator("main").inner_text()
    context.close()
