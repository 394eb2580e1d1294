"""The studio in headless Chromium: it loads, follows a run that goes on, plans as sliders move, and never complains."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from studio_runs import ODD, train
from test_serve import started

import cloister as cl
from conftest import toy_task
from studies import chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.installed() is None, reason="there is no Chromium"),
]
PAGES = ("/", "/run/one", "/study/study", "/overlay?run=one&run=study%2Fseed-0", "/planner", "/run/nothing")


class Tab(chromium.Browser):
    """A tab that has the studio open."""

    address = ""

    def visit(self, page: str, width: int = 1200, *, dark: bool = False, phone: bool = False) -> None:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self._resize(width, 900, phone)
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.call("Page.navigate", url=self.address + page)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def press(self, key: str, code: int, **more: object) -> None:
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code, **more}
        self.call("Input.dispatchKeyEvent", type="keyDown", **({"text": "\r"} if key == "Enter" else {}), **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def focused(self) -> str:
        name = "document.activeElement"
        return str(self.ask(f"{name}.id || {name}.value || {name}.textContent.trim()"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("browser") / "runs"
    train(folder / "one", record=["norms", "clipping", "thresholds"])
    train(folder / ODD, seed=1)
    for seed in (0, 1):
        train(folder / "study" / f"seed-{seed}", seed=seed)
    (folder / "foreign").mkdir()
    return folder


@pytest.fixture(scope="module")
def tab(runs, tmp_path_factory) -> Iterator[Tab]:
    process, address = started(runs)
    try:
        with Tab(tmp_path_factory.mktemp("profile")) as found:
            found.address = address
            found.visit("")
            found.address = address.split("/?")[0]
            yield found
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(autouse=True)
def _no_complaints(tab: Tab) -> Iterator[None]:
    """Whatever a test does, the console stays empty, and nothing is asked of another host."""
    tab.events.clear()
    yield
    expected = "404 (Not Found)"  # a page that a test asks for because it is not there
    assert [one for one in tab.complaints() if expected not in one] == []
    assert [url for url in tab.requests() if not url.startswith(tab.address)] == []


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "phone", "dark"), [(1200, False, False), (1200, False, True), (390, True, False)])
def test_pages_load_and_fit(tab, page, width, phone, dark):
    tab.visit(page, width, phone=phone, dark=dark)
    plots = "[...document.querySelectorAll('.plot')].filter((one) => one.offsetParent)"
    tab.until(f"{plots}.slice(0, 2).every((one) => one.querySelector('.main-svg'))")
    assert tab.ask("document.documentElement.scrollWidth <= innerWidth"), "nobody has to scroll sideways"
    assert tab.ask("document.querySelectorAll('h1').length") == 1
    ground = tab.ask("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(22, 24, 27)" if dark else "rgb(255, 255, 255)")
    unnamed = "[...document.querySelectorAll('input')].filter((one) => !one.labels?.length && !one.ariaLabel).length"
    assert tab.ask(unnamed) == 0


class Waiting(cl.Callback):
    """Holds a run after each round until somebody lets it go on."""

    def __init__(self) -> None:
        self.go = threading.Semaphore(0)

    def on_round(self, record):
        self.go.acquire(timeout=120)


def test_a_run_that_goes_on_is_followed_to_its_end(tab, runs):
    waiting = Waiting()
    method = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.5, local_steps=2, batch_size=4)
    options = {"rounds": 4, "epsilon": 4.0, "delta": 1e-2, "engine": "loop", "record": ["norms", "clipping"]}
    task = toy_task()

    def run() -> None:
        cl.run(method, task, cohort=cl.full(), folder=runs / "live", callbacks=[waiting], **options)

    worker = threading.Thread(target=run)
    worker.start()
    try:
        while not (runs / "live" / "description.json").exists():
            worker.join(0.05)
        tab.visit("/run/live")
        tab.until("document.getElementById('state').textContent === 'running'")
        for done in (1, 2, 3):
            tab.until(f"document.getElementById('rounds').textContent === '{done}'")
            tab.until(f"document.querySelector('#spent .plot').data?.[0].x.length === {done}")
            tab.until(f"document.querySelector('#norms .plot').data?.[1].x.length === {done}")
            waiting.go.release()
        tab.until("document.getElementById('rounds').textContent === '4'")
        assert tab.ask("document.getElementById('live').textContent").startswith("Round ")
        assert tab.ask("document.querySelector('#norms h2').textContent").endswith("NOT PRIVATE")
        assert tab.ask("document.querySelector('#spent .plot').data[1].y") == [4.0, 4.0], "the budget"
        tab.visit("/")
        tab.until("document.getElementById('news').textContent.includes('1 run is under way')")
        tab.visit("/run/live")
        tab.until("document.getElementById('rounds').textContent === '4'")
        waiting.go.release()
        worker.join(120)
        tab.until("document.getElementById('state').textContent === 'ended'")
        tab.until("document.getElementById('agreement').textContent.startsWith('All files of this run agree')")
        assert not tab.ask("document.getElementById('ended').hidden")
    finally:
        for _ in range(4):
            waiting.go.release()
        worker.join(120)


def test_moving_a_slider_changes_the_numbers_and_the_curve(tab):
    tab.visit("/planner")
    answered = "Number(document.getElementById('plan').dataset.answered || 0)"
    tab.until(f"{answered} === 1")
    curve = "document.querySelector('#curve .plot').data[0].y.at(-1)"
    before = tab.ask(curve), tab.ask("document.getElementById('noise').textContent")
    assert before[0] == pytest.approx(2.0, rel=1e-3)
    tab.ask("document.querySelector('[data-key=epsilon] input[type=range]').focus()")
    for _ in range(120):
        tab.press("ArrowRight", 39)
    tab.until(f"{answered} > 1 && document.getElementById('epsilon').value !== '2'")
    tab.until(f"Math.abs({curve} - Number(document.getElementById('epsilon').value)) < 0.01")
    after = tab.ask(curve), tab.ask("document.getElementById('noise').textContent")
    assert after[0] > before[0]
    assert float(after[1]) < float(before[1])
    assert f"epsilon={tab.ask('document.getElementById(`epsilon`).value')}" in tab.ask(
        "document.getElementById('command').textContent"
    )


def test_mistakes_and_warnings_are_shown_in_words(tab):
    tab.visit("/planner?clients=4&sampling_rate=1&rounds=20&epsilon=2&delta=1e-3&parameters=650")
    tab.until("!document.getElementById('warning').hidden")
    assert "too small to learn anything" in tab.ask("document.getElementById('warning').textContent")
    tab.visit("/planner")
    tab.until("document.getElementById('plan').dataset.answered === '1'")
    tab.ask("document.getElementById('epsilon').focus(), document.getElementById('epsilon').select()")
    tab.call("Input.insertText", text="few")
    tab.until("!document.getElementById('error').hidden")
    words = tab.ask("document.getElementById('error').textContent")
    assert words == "Expected a number for epsilon, found 'few': give one."


def reached(tab: Tab, wanted: Callable[[str], bool], most: int = 60) -> list[str]:
    """What has the focus, Tab by Tab, up to what is wanted; each of them can be seen to have it."""
    found = []
    for _ in range(most):
        tab.press("Tab", 9)
        found.append(tab.focused())
        outline = tab.ask("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", found[-1]
        if wanted(found[-1]):
            return found
    raise AssertionError(f"not reached: {found}")


def test_everything_can_be_done_by_keyboard(tab):
    tab.visit("/")
    order = reached(tab, lambda name: name == "filter")
    assert order[:4] == ["Skip to the content", "Runs", "Planner", "theme"]
    reached(tab, lambda name: name == "one")
    tab.press(" ", 32, text=" ")
    tab.until("document.getElementById('picked').textContent === '1 selected'")
    tab.visit("/")
    reached(tab, lambda name: name == "study")
    tab.press("Enter", 13)
    tab.until("document.querySelector('h1')?.textContent === 'study'")
    tab.visit("/run/one")
    tab.until("document.querySelector('#bytes .plot')?.data?.length > 0")  # figures come after the page
    reached(tab, lambda name: name == "Numbers")
    tab.press("Enter", 13)
    tab.until("document.querySelectorAll('#score .numbers[open] td').length > 0")
    reached(tab, lambda name: name == "The certificate for people")
    tab.press("Enter", 13)
    tab.until("document.querySelector('#certificate iframe')?.sandbox.length === 0")
    tab.visit("/planner")
    found = reached(tab, lambda name: name == "copy")
    for key in ("clients", "sampling_rate", "rounds", "epsilon", "delta", "parameters"):
        assert key in found


def test_names_are_text_in_the_page(tab):
    tab.visit("/")
    names = tab.ask("[...document.querySelectorAll('tr[data-run] th')].map((one) => one.textContent)")
    assert ODD in names
    place = f"[...document.querySelectorAll('tr[data-run] a')].find((one) => one.textContent === {ODD!r})"
    tab.ask(f"{place}.click()")
    tab.until("document.querySelector('#spent .plot')?.data?.length > 0")
    assert tab.ask("document.querySelector('h1').textContent") == ODD
