"""The report in a real browser, headless: it draws, zooms, and asks nobody for anything."""

import json
import shutil

import pytest

from cbjax.report import redraw
from tests.report.conftest import Batcher, make_run, mixed_requests

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install -e .[browser]"
)
SYSTEM = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser():
    """Playwright's own Chromium, or the system's."""
    with sync_api.sync_playwright() as playwright:
        found = [path for name in SYSTEM if (path := shutil.which(name))]
        for path in (None, *found):
            try:
                started = playwright.chromium.launch(executable_path=path)
            except sync_api.Error:
                continue
            yield started
            started.close()
            return
        pytest.skip("no Chromium: python -m playwright install chromium, or the system's package")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a run with preemptions, and with words that no window holds."""
    folder = tmp_path_factory.mktemp("report") / "run"
    make_run(folder, Batcher(mixed_requests(9), num_blocks=24), "<b>bold</b>", "vllm",
             config={"policy": {"name": "vllm"}, "path": 300 * "x"})
    _, (path, *_) = redraw(folder)
    return path


@pytest.fixture
def opened(browser, report):
    """A page with the report, and what it asked for or complained about."""
    told = []
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: told.append(request.url))
    page.goto(report.as_uri())
    yield page, told
    page.close()


def shown(page) -> str:
    return page.locator("#range").text_content()


def colours(page) -> set:
    """The colours on the first canvas."""
    pixels = page.evaluate(
        """() => {
          const canvas = document.querySelector("canvas");
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          const found = new Set();
          for (let n = 0; n < data.length; n += 4) found.add(data.slice(n, n + 3).join());
          return [...found];
        }"""
    )
    return set(pixels)


def test_a_report_opens_from_disk_and_asks_for_nothing(opened):
    page, told = opened
    assert [one for one in told if not one.startswith("data:")] == [page.url]
    images = page.locator("img").evaluate_all("all => all.map((one) => one.naturalWidth)")
    assert len(images) >= 5 and min(images) > 100
    assert page.locator("h1").inner_text() == "<b>bold</b>" and not page.locator("b").count()
    alts = page.locator("img").evaluate_all("all => all.map((one) => one.alt)")
    assert all(len(alt) > 20 for alt in alts)


def test_the_timeline_is_drawn_in_the_colours_of_the_figures(opened):
    page, _ = opened
    data = json.loads(page.locator("#timeline-data").text_content())
    wanted = {kind: data["colours"][kind] for kind in ("prefill", "decode", "preempted")}
    drawn = colours(page)
    for kind, colour in wanted.items():
        rgb = ",".join(str(int(colour[n : n + 2], 16)) for n in (1, 3, 5))
        assert rgb in drawn, f"no {kind} is drawn"


def test_the_timeline_zooms_and_moves(opened):
    page, _ = opened
    everything = shown(page)
    canvas = page.locator("canvas").first
    canvas.hover(position={"x": 300, "y": 100})
    page.mouse.wheel(0, 10)
    assert shown(page) == everything, "a plain wheel scrolls the page"
    canvas.hover(position={"x": 300, "y": 100})
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_function("all => document.getElementById('range').textContent != all",
                           arg=everything)
    zoomed = shown(page)
    canvas.hover(position={"x": 300, "y": 100})
    page.mouse.down()
    page.mouse.move(page.viewport_size["width"] / 2, 100)
    page.mouse.up()
    assert shown(page) not in (zoomed, everything)
    page.get_by_role("button", name="show all").click()
    assert shown(page) == everything
    canvas.focus()
    page.keyboard.press("+")
    assert shown(page) != everything
    page.keyboard.press("0")
    assert shown(page) == everything


def test_pointing_tells_what_is_there(opened):
    page, _ = opened
    canvas = page.locator("canvas").first
    canvas.hover(position={"x": 70, "y": 80})
    said = page.locator("#pointed")
    assert "iteration 0" in said.text_content() and "prefill" in said.text_content()
    canvas.hover(position={"x": 66, "y": 98})
    assert "request 0: prefill" in said.text_content()
    canvas.hover(position={"x": 10, "y": 98})
    assert said.text_content() == ""


@pytest.mark.parametrize("width", [360, 1000, 1600])
def test_the_page_fits_its_window(opened, width):
    page, _ = opened
    page.set_viewport_size({"width": width, "height": 700})
    page.locator("details").evaluate_all("all => all.forEach((one) => { one.open = true; })")
    sizes = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert sizes[0] <= sizes[1]


def test_it_prints(opened, tmp_path):
    page, _ = opened
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible() and page.locator("h2").first.is_visible()
