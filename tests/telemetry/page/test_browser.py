"""The page in a browser, driven as a person would: headless Chromium, where it is installed."""

import logging
import os
import shutil

import pytest

from tests.keep_games_command import wait_until as wait_for
from tests.run_log import write_messages, write_races
from tests.telemetry.page.conftest import RECORD_MS, make_run, race_line, serving
from trackmania_rl.paths import PROJECT_FOLDER
from trackmania_rl.runs.log import RunLog
from trackmania_rl.settings import load_settings
from trackmania_rl.telemetry.figures import progress_figures
from trackmania_rl.telemetry.page.command import address
from trackmania_rl.telemetry.page.page import RunPage
from trackmania_rl.telemetry.statistics import TrainingStatistics

webdriver = pytest.importorskip("selenium.webdriver", reason="python -m pip install selenium")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

from ...lacking import lacks  # noqa: E402

HOST = "127.0.0.1"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def shown_run(tmp_path_factory, repository_root):
    save_folder = tmp_path_factory.mktemp("runs") / "save"
    other = make_run(save_folder, repository_root, "other", n_races=3)
    shutil.rmtree(other.best_runs)
    os.utime(other.run_log, (1e9, 1e9))
    run = make_run(save_folder, repository_root)
    write_figures(run)
    page = RunPage(run, PROJECT_FOLDER)
    page.watched.picture(page.record(f"valley_{RECORD_MS}"), 0)  # compiles what drives and draws
    return run


@pytest.fixture(scope="module")
def server(shown_run):
    """The page's address."""
    with serving(RunPage(shown_run, PROJECT_FOLDER), HOST) as port:
        yield address(HOST, port, None)


def write_figures(run):
    statistics = TrainingStatistics()
    statistics.current_values = {"epsilon": 0.5}
    means = {"loss": 1.0, "test_loss": 2.0, "mean_q": 3.0, "grad_norm": 4.0}
    settings = load_settings(PROJECT_FOLDER / "config_files" / "config.py")
    log = RunLog(run.run_log, lambda: 0.0, 1)
    for frames in (100, 200):
        log.write_figures(progress_figures(statistics, settings, means), frames)
    log.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))
    chromium, driver = next(filter(None, found), None), shutil.which("chromedriver")
    if chromium is None or driver is None:
        lacks("Chromium is not installed: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()


@pytest.fixture
def page(browser, server):
    """The page, opened anew at a desktop's width; nothing on it may fail."""
    browser.set_window_size(1400, 900)
    browser.get(server)
    wait_for(lambda: text(browser, "run-name") == "tested", "the run's name")
    yield browser
    complaints = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    # An edit that is refused is an answer of the server's which the browser notes as well.
    assert not [entry for entry in complaints if "422" not in entry["message"]]


def text(browser, name):
    return browser.find_element(By.ID, name).text


def n_colours(browser):
    """How many colours the map's canvas shows."""
    return browser.execute_script(
        "const map = document.getElementById('map');"
        "const data = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;"
        "return new Set(new Uint32Array(data.buffer)).size;"
    )


def test_a_run_is_shown_and_its_record_played_and_news_come_as_they_are_written(page, shown_run):
    facts = text(page, "facts")
    assert "frames 8,000" in facts.replace("\n", " ")
    wait_for(lambda: n_colours(page) > 5, "road on the map")
    wait_for(lambda: text(page, "speed") not in ("–", "0"), "car that drives")
    wait_for(lambda: page.find_element(By.ID, "picture").is_displayed(), "picture")
    wait_for(lambda: "on" in page.find_element(By.CSS_SELECTOR, "[data-key=up]").get_attribute("class"), "pressed key")
    assert len(page.find_elements(By.CSS_SELECTOR, "#q-values div")) == 12
    assert "record" in text(page, "race-kind")
    wait_for(lambda: len(page.find_elements(By.CSS_SELECTOR, "#sections-table tbody tr")) == 4, "sections")
    page.execute_script("document.getElementById('curves').scrollIntoView()")
    wait_for(lambda: page.find_elements(By.CSS_SELECTOR, "#charts .uplot canvas"), "chart")
    assert "collector 0 has died" in text(page, "log")
    write_races(shown_run.run_log, [race_line(21)])
    write_messages(shown_run.run_log, ["the disk <b>is full</b>"], logging.WARNING)
    wait_for(lambda: "the disk <b>is full</b>" in text(page, "log"), "new message, as text")
    wait_for(lambda: "8,400" in text(page, "facts"), "new race")


def test_a_setting_is_edited_and_a_wrong_one_is_refused(page, shown_run):
    field = (By.CSS_SELECTOR, "[data-setting=evaluation_weights_decay]")

    def find_setting():
        page.execute_script("document.getElementById('settings').scrollIntoView()")
        wait_for(lambda: page.find_elements(By.CSS_SELECTOR, "#settings-rows summary"), "settings")
        page.find_element(By.ID, "settings-search").send_keys("evaluation_weights_decay")
        wait_for(lambda: page.find_elements(*field), "setting")

    def answer():
        row = "document.querySelector('[data-setting=evaluation_weights_decay]')?.closest('.setting')"
        told = page.execute_script(f"return {row}?.querySelector('.told').textContent")
        return told

    def give(value):
        found = page.find_element(*field)
        found.send_keys(Keys.CONTROL, "a")
        found.send_keys(value)
        found.find_element(By.XPATH, "../..//button").send_keys(Keys.ENTER)
        wait_for(answer, "answer")
        return answer()

    find_setting()
    assert "evaluation_weights_decay = 7: input should be less than 1" in give("7")
    assert "evaluation_weights_decay = 7" not in shown_run.settings.read_text()
    page.refresh()
    find_setting()
    page.execute_script("document.querySelector('[data-setting=evaluation_weights_decay]').isOld = true")
    assert "evaluation_weights_decay: 0.998 -> 0.8" in give("0.8")
    assert "evaluation_weights_decay = 0.8\n" in shown_run.settings.read_text()
    is_new = "return !document.querySelector('[data-setting=evaluation_weights_decay]').isOld"
    wait_for(lambda: page.execute_script(is_new), "rows of the edited configuration")
    assert "evaluation_weights_decay: 0.998 -> 0.8" in answer(), "it stays"


def test_the_other_runs_of_the_folder_are_listed_and_opened(page):
    wait_for(lambda: len(page.find_elements(By.CSS_SELECTOR, "#runs-table a")) == 2, "list of runs")
    assert f"{RECORD_MS / 1000:.3f} valley" in text(page, "runs-table")
    page.execute_script("[...document.querySelectorAll('#runs-table a')].find((a) => a.text === 'other').click()")
    wait_for(lambda: text(page, "run-name") == "other", "the other run's name")
    wait_for(lambda: "1,200" in text(page, "facts"), "its frames")
    wait_for(lambda: text(page, "no-picture").startswith("The training does not run,"), "note that nothing is played")


def test_header_is_one_row_and_its_links_land_on_their_sections(page):
    wait_for(lambda: page.find_elements(By.CSS_SELECTOR, "#maps-table tbody"), "tables")
    wait_for(lambda: page.find_elements(By.CSS_SELECTOR, "#settings-rows summary"), "settings")
    height = page.execute_script("return document.querySelector('header').getBoundingClientRect().height")
    assert height < 60
    page.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    for name in ("messages", "curves"):
        page.execute_script("scrollTo(0, 0)")
        page.find_element(By.CSS_SELECTOR, f"nav a[href='#{name}']").click()
        wait_for(lambda: page.find_elements(By.CSS_SELECTOR, "#charts canvas"), "charts")
        top = f"return document.getElementById('{name}').getBoundingClientRect().top"
        wait_for(lambda top=top: height <= page.execute_script(top) < height + 40, f"{name} below the header")


def test_a_setting_shows_its_default_and_a_boolean_is_a_switch(page, shown_run):
    wait_for(lambda: page.find_elements(By.CSS_SELECTOR, "#settings-rows summary"), "settings")
    page.find_element(By.ID, "settings-search").send_keys("use_ddqn")
    wait_for(lambda: page.find_elements(By.CSS_SELECTOR, "[data-setting=use_ddqn]"), "setting")
    switch = page.find_element(By.CSS_SELECTOR, "[data-setting=use_ddqn]")
    assert switch.get_attribute("role") == "switch"
    assert "default off" in switch.find_element(By.XPATH, "../..").text
    page.execute_script("arguments[0].click()", switch)
    wait_for(lambda: "use_ddqn = true" in shown_run.settings.read_text(), "edit in the run's file")
    wait_for(lambda: page.find_elements(By.CSS_SELECTOR, ".setting.differs [data-setting=use_ddqn]"), "mark")


def test_nothing_is_wider_than_a_phone(page):
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        wait_for(lambda: n_colours(page) > 5, "road on the map")
        wait_for(lambda: page.find_elements(By.CSS_SELECTOR, "#records-table button"), "records")
        width = page.execute_script("return document.documentElement.scrollWidth")
        assert width == 360
        cut = (
            "return [...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth).length"
        )
        wait_for(lambda: len(page.find_elements(By.CSS_SELECTOR, ".scroll tbody")) >= 4, "tables")
        assert page.execute_script(cut) == 0
        page.execute_script("document.querySelector('#records-table button').click()")
        chosen = page.find_element(By.ID, "source")
        wait_for(lambda: chosen.get_attribute("value") == f"record:valley_{RECORD_MS}", "record that plays")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
