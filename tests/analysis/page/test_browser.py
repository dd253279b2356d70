"""The page in Chromium, offline: no error, the right weights in the viewer, keyboard, contrast, themes, print."""

import base64
import functools
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from bertjax.analysis.drawing import Chart, Figure
from bertjax.analysis.page import Maps, Section, Table, Token, TokenRow, page
from tests.analysis.page.test_page import drawn
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = pytest.mark.slow

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1400,1000",
)
ENGLISH = ("[CLS]", "the", "king", "was", "old", "[SEP]")
KOREAN = ("[CLS]", "대법원", "은", "pneumonoultramicroscopicsilicovolcanoconiosis", "[SEP]")
LAYERS, HEADS = 3, 4
# (layer, head, row, column) of the only weight of the Korean sentence that is not tiny, and its byte.
KNOWN, BYTE = (2, 3, 1, 3), 204
WEIGHT = (BYTE / 255) ** 2


def example() -> str:
    """A page with everything that a page can have."""
    draw = np.random.default_rng(0)
    korean = np.full((LAYERS, HEADS, len(KOREAN), len(KOREAN)), 1e-5)
    korean[KNOWN] = WEIGHT
    maps = [
        Maps(model, " ".join(ENGLISH), ENGLISH, draw.dirichlet(np.full(6, 0.3), (LAYERS, HEADS, 6)))
        for model in ("before", "after")
    ]
    maps.append(Maps("before", "대법원", KOREAN, korean))
    maps.append(Maps("before", "대법원", KOREAN, draw.dirichlet(np.full(5, 0.3), (LAYERS, 1, 5)), kind="rollout"))
    blocks = (
        Figure("loss", "A loss against the step.", "", Chart("A loss falls.", drawn)),
        Table("Settings.", ("setting", "", "value"), (("seed", "", "1"),), frozenset({(0, 2)})),
        TokenRow("A row.", (Token("[MASK]", 0, "왕"), Token("king", 1), Token("was", 1, "is"))),
    )
    sections = (
        Section("training", "Training", ("A paragraph.",), blocks),
        Section("sentences", "Sentences", maps=tuple(maps)),
        Section("layers", "What layers know", skipped="the model has no masked-LM head"),
    )
    return page("An example", sections, "A lead.")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("there is no chromium with chromedriver (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        browser.set_page_load_timeout(LIMIT_SECONDS)
        browser.set_script_timeout(LIMIT_SECONDS)
        browser.execute_cdp_cmd("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield browser
    finally:
        browser.quit()


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(example(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def open_page(browser, url):
    """open_page(scheme, url=..., width=...) -> the browser with the page, and no line in its console."""

    def opened(scheme: str = "light", address: str = url, width: int = 1400):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(address)
        is_drawn = "return [...document.querySelectorAll('.viewer')].every((viewer) => viewer.dataset.shown)"
        wait_until(lambda: browser.execute_script(is_drawn))
        return browser

    yield opened
    assert browser.get_log("browser") == []


def one(browser, selector: str):
    from selenium.webdriver.common.by import By

    return browser.find_element(By.CSS_SELECTOR, selector)


def values(browser) -> list[str]:
    """The chosen layer and head."""
    return [one(browser, f"input[name={name}]").get_attribute("value") for name in ("layer", "head")]


def read(browser) -> str:
    """What the viewer says about its cell."""
    return one(browser, ".readout").text.partition("\n")[0]


def press(browser, *keys: str, holding: str = "") -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    actions = ActionChains(browser)
    if holding:
        actions.key_down(holding).send_keys(*keys).key_up(holding).perform()
    else:
        actions.send_keys(*keys).perform()


def point(browser, selector: str, across: float, down: float, click: bool = False) -> None:
    """Move the pointer to a place of an element, in CSS pixels from its upper left corner."""
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    script = """
        const element = document.querySelector(arguments[0]);
        element.scrollIntoView({ block: 'start', behavior: 'instant' });
        const { left, top } = element.getBoundingClientRect();
        return [left, top];
    """
    left, top = browser.execute_script(script, selector)
    builder = ActionBuilder(browser)
    builder.pointer_action.move_to_location(round(left + across), round(top + down))
    if click:
        builder.pointer_action.click()
    builder.perform()


def choose(browser, name: str, value: str) -> None:
    """Choose from a list of the viewer, and wait until its map is drawn."""
    from selenium.webdriver.support.select import Select

    before = one(browser, ".viewer").get_attribute("data-shown")
    Select(one(browser, f"select[name={name}]")).select_by_value(value)
    wait_until(lambda: one(browser, ".viewer").get_attribute("data-shown") != before)


def slide(browser, name: str, steps: int) -> None:
    from selenium.webdriver.common.keys import Keys

    one(browser, f"input[name={name}]").send_keys(Keys.ARROW_RIGHT * steps)


def pixel(browser, row: int, column: int) -> list[int]:
    """The color in the middle of a cell."""
    return browser.execute_script(
        """
        const canvas = document.querySelector('.map'), { margin, cell } = canvas.dataset;
        const at = (index) => Number(margin) + (index + 0.5) * cell;
        const copy = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
        copy.drawImage(canvas, at(arguments[1]), at(arguments[0]), 1, 1, 0, 0, 1, 1);
        return [...copy.getImageData(0, 0, 1, 1).data.slice(0, 3)];
        """,
        row,
        column,
    )


def test_the_page_asks_for_nothing(open_page):
    browser = open_page()
    assert browser.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
    assert browser.title == "An example"


@pytest.mark.parametrize("scheme, strong", [("light", [11, 60, 120]), ("dark", [195, 220, 255])])
def test_a_known_weight_is_under_the_pointer_at_its_cell(open_page, scheme, strong):
    browser = open_page(scheme)
    layer, head, row, column = KNOWN
    choose(browser, "sentence", "대법원")
    slide(browser, "layer", layer)
    slide(browser, "head", head)
    canvas = one(browser, ".map")
    margin, cell = (float(canvas.get_attribute(f"data-{name}")) for name in ("margin", "cell"))
    point(browser, ".map", *(margin + (index + 0.5) * cell for index in (column, row)))
    wait_until(lambda: read(browser) == f"{KOREAN[row]} → {KOREAN[column]}: {WEIGHT:.2f}")
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    paper = [int(part) for part in paper.removeprefix("rgb(").removesuffix(")").split(",")]
    mixed = [low + (high - low) * BYTE / 255 for low, high in zip(paper, strong, strict=True)]
    assert np.allclose(pixel(browser, row, column), mixed, atol=1)
    assert np.allclose(pixel(browser, row + 1, column), paper, atol=2)


def test_the_keyboard_reaches_every_sentence_layer_head_and_cell(open_page):
    from selenium.webdriver.common.keys import Keys

    browser = open_page()
    layer, head, row, column = KNOWN
    names = []
    for _ in range(40):
        press(browser, Keys.TAB)
        names.append(browser.execute_script("const a = document.activeElement; return a.name || a.className || a.id"))
        if names[-1] == "map":
            break
    assert [name for name in names if name in ("theme", "sentence", "model", "kind", "layer", "head", "map")] == [
        *("theme", "sentence", "model", "kind", "layer", "head", "map")
    ]
    shown = functools.partial(one(browser, ".viewer").get_attribute, "data-shown")
    press(browser, Keys.PAGE_DOWN)
    wait_until(lambda: shown() == "2")
    assert one(browser, "select[name=sentence]").get_attribute("value") == "대법원"
    press(browser, *[Keys.ARROW_DOWN] * layer, *[Keys.ARROW_RIGHT] * head, holding=Keys.SHIFT)
    wait_until(lambda: values(browser) == [str(layer + 1), str(head + 1)])
    press(browser, *[Keys.ARROW_DOWN] * row, *[Keys.ARROW_RIGHT] * (column + 9), *[Keys.ARROW_LEFT])
    wait_until(lambda: read(browser) == f"{KOREAN[row]} → {KOREAN[column]}: {WEIGHT:.2f}")
    assert f"layer {layer + 1}, head {head + 1}: 대법원" in one(browser, ".map").get_attribute("aria-label")
    press(browser, Keys.PAGE_UP)
    wait_until(lambda: shown() == "0")


@pytest.fixture(scope="module")
def axe() -> str:
    path = Path(os.environ.get("AXE_CORE") or "node_modules/axe-core/axe.min.js")
    if not path.is_file():
        pytest.skip(f"there is no axe-core at {path} (npm install axe-core, or AXE_CORE=path/to/axe.min.js)")
    return path.read_text(encoding="utf-8")


def violations(browser, axe: str) -> list[str]:
    """What axe finds, one line for each element."""
    browser.execute_script(axe)
    found = browser.execute_async_script(
        "const done = arguments[0]; axe.run(document, { resultTypes: ['violations', 'incomplete'] }).then(done, done)"
    )
    contrast = {"color-contrast", "color-contrast-enhanced"}
    unsure = [rule for rule in found["incomplete"] if rule["id"] not in contrast]
    assert "color-contrast" in {rule["id"] for rule in found["passes"]}, "axe did not look at colors"
    return [f"{rule['id']}: {node['html']}" for rule in (*found["violations"], *unsure) for node in rule["nodes"]]


@pytest.mark.parametrize("scheme, width", [("light", 1400), ("dark", 1400), ("light", 390)])
def test_axe_finds_no_violation(open_page, axe, scheme, width):
    assert violations(open_page(scheme, width=width), axe) == []


def test_only_what_scrolls_is_a_stop_of_the_keyboard(open_page):
    stops = (
        "return [...document.querySelectorAll('.wide')].map((e) => [e.tabIndex === 0, e.scrollWidth > e.clientWidth])"
    )
    wide, narrow = (open_page(width=width).execute_script(stops) for width in (1400, 390))
    assert not any(scrolls for _, scrolls in (*wide, *narrow)), "figures and tables fit a phone"
    assert all(stop == scrolls for stop, scrolls in (*wide, *narrow))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_of_a_run_has_no_violation(open_page, axe, scheme, tmp_path):
    from bertjax.cli import report
    from tests.analysis.test_run_report import write_run

    path = report.run(write_run(tmp_path / "run"))
    assert violations(open_page(scheme, Path(path).absolute().as_uri()), axe) == []


def test_the_button_switches_between_light_and_dark(open_page):
    browser = open_page("dark")
    paper = functools.partial(browser.execute_script, "return getComputedStyle(document.body).backgroundColor")
    assert paper() == "rgb(20, 23, 28)"
    one(browser, "#theme").click()
    wait_until(lambda: paper() == "rgb(255, 255, 255)")
    assert one(browser, "#theme").get_attribute("aria-pressed") == "false"


def test_a_narrow_screen_shows_whole_tokens_and_does_not_scroll_sideways(open_page):
    browser = open_page(width=390)
    choose(browser, "sentence", "대법원")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    margin = float(one(browser, ".map").get_attribute("data-margin"))
    width = browser.execute_script(
        """
        const context = document.createElement('canvas').getContext('2d');
        context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
        return context.measureText(arguments[0]).width;
        """,
        KOREAN[3],
    )
    assert margin >= width > 200


def test_a_print_is_light_whole_and_without_controls(open_page):
    browser = open_page("dark")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not one(browser, ".controls").is_displayed() and one(browser, ".where").is_displayed()
    assert one(browser, ".map").is_displayed()
