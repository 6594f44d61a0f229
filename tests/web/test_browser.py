"""Pages in a real Chromium: accessibility, both themes, narrow and wide, the time machine, hostile names."""

from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.web.browser import PATIENCE, chromium, window
from tests.web.served import Served, serving
from tests.web.test_server import SCRIPT, hostile_state

Example = Callable[[str], Served]

PAGES = {
    "demo": [
        "/",
        "/queues",
        "/queues/serving",
        "/jobs",
        "/jobs/default/llm-pretrain-xl",
        "/jobs/default/chat?kind=deployment",
        "/nodes",
        "/what-if?drain=a100-1",
        "/what-if?drain=nothing",
        "/nothing",
    ],
    "tidal": ["/?at=8h30m", "/queues/training?at=12h", "/jobs/default/pretrain", "/jobs/default/tuning?at=12h"],
    "vgpu": ["/", "/nodes", "/queues"],
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.mark.parametrize("name, path", [(name, path) for name, paths in PAGES.items() for path in paths])
def test_a_page_has_no_faults_in_both_themes_and_widths(
    example: Example, browser: Browser, name: str, path: str
) -> None:
    served = example(name)
    for width, theme in ((400, "dark"), (2000, "light")):
        with window(browser, served.url, width=width, theme=theme) as watched:
            watched.open(path)
            serious = [
                f"{one['id']}: {node['html'][:200]}: {node['failureSummary'][:300]}"
                for one in Axe().run(watched.page).response["violations"]
                if one["impact"] in {"serious", "critical"}
                for node in one["nodes"]
            ]
            assert serious == []
            assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
            faults = [text for text in watched.faults if path != "/nothing" or "404" not in text]
            assert faults == []


def test_the_slider_moves_the_page_and_keeps_its_place_in_the_address(example: Example, browser: Browser) -> None:
    served = example("tidal")
    with window(browser, served.url) as watched:
        watched.open("/queues")
        page = watched.page
        slider = page.get_by_role("slider")
        for at, used in (("30600", "8 of 12"), ("43200", "14 of 14"), ("75600", "6 of 14")):
            slider.fill(at)
            row = page.get_by_role("row").filter(has=page.get_by_role("link", name="serving"))
            row.get_by_text(used).wait_for(timeout=PATIENCE)
            page.wait_for_url(f"**/queues?at={at}")
        page.get_by_role("link", name="Overview").click()
        page.wait_for_url("**/?at=75600")
        assert slider.input_value() == "75600"
        assert watched.faults == []


def test_the_history_plays(example: Example, browser: Browser) -> None:
    served = example("tidal")
    with window(browser, served.url) as watched:
        watched.open("/?at=6h")
        page = watched.page
        page.get_by_role("button", name="Play the history").click()
        page.get_by_role("cell", name="default/pretrain-worker-0").wait_for(timeout=PATIENCE)
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Play the history").wait_for()
        assert watched.faults == []


def test_pages_work_without_scripts(example: Example, browser: Browser) -> None:
    served = example("tidal")
    with window(browser, served.url, scripts=False) as watched:
        watched.open("/jobs?at=12h")
        page = watched.page
        page.get_by_label("Order").select_option("name")
        page.get_by_role("button", name="Show").click()
        page.wait_for_url("**/jobs?at=12h&*")
        page.get_by_role("link", name="pretrain").click()
        page.get_by_text("No node has 4 NVIDIA-H200 free").first.wait_for()
        assert page.get_by_role("button", name="Go").is_visible()


def test_a_filter_shows_the_jobs_of_its_document(example: Example, browser: Browser) -> None:
    served = example("demo")
    wanted = [item["name"] for item in served.get("/api/v1/jobs?queue=serving&sort=name").json["items"]]
    with window(browser, served.url) as watched:
        watched.open("/jobs?sort=name")
        page = watched.page
        page.locator("#f-queue").select_option("serving")
        page.wait_for_url("**queue=serving**")
        shown = page.locator("tbody tr td:first-child a").all_inner_texts()
        assert shown == wanted == ["chat", "embedder"]
        assert watched.faults == []


def test_a_person_with_a_keyboard_reaches_a_job_and_its_fixes(example: Example, browser: Browser) -> None:
    served = example("demo")
    with window(browser, served.url) as watched:
        watched.open("/jobs")
        page = watched.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to content"
        page.keyboard.press("Enter")
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent") == "llm-pretrain-xl":
                break
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Fixes").wait_for()
        assert watched.faults == []


def test_hostile_names_stay_text(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    state = hostile_state(tmp_path_factory.mktemp("hostile"))
    with serving("-f", str(state)) as served, window(browser, served.url) as watched:
        names = f"{quote(f'ns{SCRIPT}', safe='')}/{quote(f'g{SCRIPT}', safe='')}"
        for path in (
            "/",
            "/queues",
            "/jobs",
            f"/jobs/{names}",
            f"/queues/{quote(f'q{SCRIPT}', safe='')}",
            "/nodes",
        ):
            watched.open(path)
            assert watched.page.locator("main script, main img").count() == 0
            assert "<script>alert(1)<img" in watched.page.inner_text("body")
        watched.open(f"/jobs?text={quote(SCRIPT)}")
        assert watched.page.get_by_label("Search").input_value().startswith("<script>")
        assert watched.faults == []
