# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The HTML file in a real headless Chromium. Screenshots go to build/report, which is not in git."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurack.report import write
from tests.unit.gpurack.browser import Page, chromium
from tests.unit.gpurack.report_data import Made
from tests.unit.gpurack.test_report_html import HOSTILE

SHOTS = Path(__file__).resolve().parents[3] / "build" / "report"
READY = "document.querySelector('#matrix')?.dataset.ready === 'true'"
DASH = "\N{EN DASH}"
ACTIVE = "document.activeElement.getAttribute('href')"
READOUT = "document.querySelector('.readout').textContent"

LOW_CONTRAST = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (css) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = css;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const part = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => sum + weight * part(c[i] / 255), 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgba(getComputedStyle(e).backgroundColor);
      if (c[3] > 250) return c;
    }
    return [255, 255, 255, 255];
  };
  const found = [];
  for (const e of document.querySelectorAll("main *, header *, footer, dialog[open] *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest("noscript")) continue;
    const [a, b] = [light(rgba(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) found.push(`${e.tagName}.${e.className} ${e.textContent.trim().slice(0, 30)} ${contrast}`);
  }
  return [...new Set(found)].slice(0, 20);
})()"""

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no chromium; `make unit` installs it")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Made(9, hostile=HOSTILE + "\x1b[31m\u202etxt").write(tmp_path_factory.mktemp("small"))
    return Path(write(made)["files"]["html"])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write(Made(128).write(tmp_path_factory.mktemp("large")))["files"]["html"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with Page(str(chromium())) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    yield browser
    # Nothing but the file itself was asked for, and nothing went wrong.
    assert [url for url in browser.requests if not url.endswith("/report.html") and url != "about:blank"] == []
    assert browser.problems == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 420], ids=["wide", "narrow"])
@pytest.mark.parametrize("size", ["small", "large"])
def test_it_is_shown(page: Page, size: str, width: int, dark: bool, request: pytest.FixtureRequest) -> None:
    page.open(request.getfixturevalue(size), width, 900, dark)
    page.until(READY)
    page.screenshot(SHOTS / f"{size}-{width}-{'dark' if dark else 'light'}.png", whole=True)
    background = page.js("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(18, 21, 24)" if dark else "rgb(252, 252, 251)")
    # Wide things scroll in boxes of their own, the page does not.
    assert page.js("document.documentElement.scrollWidth") <= width
    assert page.js("document.querySelectorAll('.tile').length") == (9 if size == "small" else 128)
    assert page.js("typeof alert_was_called") == "undefined"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_stands_out_from_its_background(page: Page, small: Path, dark: bool) -> None:
    """WCAG AA: a contrast of 4.5 for everything that is read."""
    page.open(small, dark=dark)
    page.until(READY)
    page.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    low = page.js(LOW_CONTRAST)
    assert low == []
    page.open(small, dark=dark, fragment="#node/node2/nvlink_topology")
    page.until("document.querySelector('dialog').dataset.shown === 'node2'")
    page.js("document.querySelectorAll('dialog details').forEach((d) => { d.open = true; })")
    page.until("(document.querySelector('dialog pre')?.textContent.length ?? 0) > 5")
    assert page.js(LOW_CONTRAST) == []


def test_the_toggle_goes_against_the_system(page: Page, small: Path) -> None:
    page.open(small, dark=False)
    colour = "getComputedStyle(document.body).backgroundColor"
    for label, expected in (
        ("light", "rgb(252, 252, 251)"),
        ("dark", "rgb(18, 21, 24)"),
        ("auto", "rgb(252, 252, 251)"),
    ):
        page.js("document.querySelector('#theme').click()")
        assert page.js("document.querySelector('#theme').textContent.trim().split(' ')[1]") == label
        assert page.js(colour) == expected


def test_tiles_by_keyboard(page: Page, small: Path) -> None:
    page.open(small)
    page.key("Tab")
    assert page.js("document.activeElement.textContent") == "Skip to the nodes"
    page.js("document.querySelector('.tile').focus()")
    page.key("ArrowRight")
    assert page.js(ACTIVE) == "#node/node2"
    page.key("End")
    assert page.js(ACTIVE) == "#node/node9"
    page.key("ArrowUp")
    assert page.js(ACTIVE) == "#node/node4"
    page.key("Home")
    page.key("ArrowRight")
    page.key("Enter")
    page.until("document.querySelector('dialog').dataset.shown === 'node2'")
    assert page.js("document.querySelector('dialog h2').textContent") == "node2"
    page.key("Escape")
    page.until("!document.querySelector('dialog').open")
    assert page.js(ACTIVE) == "#node/node2"
    # One stop for all tiles, however many.
    assert page.js("document.querySelectorAll('.tile[tabindex=\"0\"]').length") == 1


def test_a_finding_leads_to_its_raw_evidence(page: Page, small: Path) -> None:
    page.open(small)
    page.js(
        "[...document.querySelectorAll('#findings a')].find((a) => a.hash === '#node/node2/nvlink_topology').click()"
    )
    page.until("(document.querySelector('dialog pre')?.textContent ?? '').includes('NV17')")
    text = page.js("document.querySelector('dialog pre').textContent")
    assert HOSTILE in text
    # What would colour or turn a terminal is shown in its place.
    assert "^[[4mGPU0" in text
    assert "<U+202E>" in text
    assert page.js("document.querySelectorAll('img').length") == 0
    assert "nvlink_topology.json" in page.js("document.querySelector('dialog .meta').textContent")
    page.screenshot(SHOTS / "node.png")
    page.js("document.querySelector('[aria-label=\"Next node\"]').click()")
    page.until("document.querySelector('dialog').dataset.shown === 'node3'")


def test_a_link_to_a_node_opens_it(page: Page, small: Path) -> None:
    page.open(small, fragment="#node/node5")
    page.until("document.querySelector('dialog').dataset.shown === 'node5'")
    assert "timed out" in page.js("document.querySelector('dialog').textContent")


def test_filters(page: Page, large: Path) -> None:
    page.open(large)
    shown = (
        "[...document.querySelectorAll('.tile')].filter((tile) => tile.checkVisibility())"
        ".map((tile) => tile.querySelector('b').textContent).join()"
    )
    page.js("document.querySelector('.count[data-state=fail]').click()")
    assert page.js(shown) == "node2,node3,node8"
    page.js("document.querySelector('.count[data-state=unreachable]').click()")
    assert page.js(shown) == "node2,node3,node5,node8"
    page.js("document.querySelector('#find').value = 'nvlink'")
    page.js("document.querySelector('#find').dispatchEvent(new Event('input'))")
    assert page.js(shown) == "node2"
    assert page.js("document.querySelector('#found').textContent") == "1 of 128 shown"


def test_the_matrix_of_a_small_rack(page: Page, small: Path) -> None:
    page.open(small)
    page.until(READY)
    assert page.js("document.querySelectorAll('.grid td.bad').length") == 2 * 6
    assert page.js("[...document.querySelectorAll('.grid td.bad')].every((td) => td.textContent.startsWith('✕'))")
    assert page.js("document.querySelector('.grid th.blamed-end').textContent") == "◆ node3"
    page.js("document.querySelector('.grid td[data-at=\"0 1\"]').focus()")
    page.key("ArrowRight")
    assert page.js("document.activeElement.dataset.at") == "0 2"
    assert page.js(READOUT).startswith(f"node1 {DASH} node3: 3.")
    assert page.js(READOUT).endswith("✕ bad, limit 2.15\u00a0µs")
    page.key("End")
    page.key("ArrowDown", 4)
    assert page.js("document.activeElement.dataset.at") == "4 8"
    assert "not measured" in page.js(READOUT)
    assert "node5 was not met" in page.js(READOUT)
    # Another rail is a good one.
    page.js("document.querySelectorAll('#matrix select')[1].value = '0'")
    page.js("document.querySelectorAll('#matrix select')[1].dispatchEvent(new Event('change'))")
    assert page.js("document.querySelectorAll('.grid td.bad').length") == 0


def test_the_matrix_of_a_large_rack(page: Page, large: Path) -> None:
    page.open(large)
    page.until(READY)
    assert "node3" in page.js(READOUT)
    assert "✕ bad" in page.js(READOUT)
    page.js("document.querySelector('.matrix-box canvas').focus()")
    page.key("Home")
    page.key("ArrowUp", 2)
    page.key("ArrowRight", 16)
    assert page.js(READOUT).startswith(f"node1 {DASH} node17: 2.")
    page.key("ArrowRight")
    assert page.js(READOUT) == f"node1 {DASH} node18: not in the schedule"
    page.screenshot(SHOTS / "matrix-128.png")
    # A key press draws 16384 cells again.
    spent = page.js(
        "(() => { const c = document.querySelector('.matrix-box canvas'); const t = performance.now();"
        " for (let i = 0; i < 10; i += 1) c.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));"
        " return (performance.now() - t) / 10; })()"
    )
    assert spent < 300
    page.key("Enter")
    page.until("document.querySelector('dialog').dataset.shown === 'node1'")


def test_it_prints(page: Page, small: Path) -> None:
    page.open(small)
    page.until(READY)
    assert page.pdf().startswith(b"%PDF-")


def test_without_a_script_verdicts_and_findings_are_there(page: Page, small: Path) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.call("Page.navigate", url=small.as_uri())
        page.until("document.readyState === 'complete' && !!document.querySelector('footer')")
        text = page.js("document.body.innerText")
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert "nvlink_topology.matrix" in text
    assert "Without JavaScript" in text
