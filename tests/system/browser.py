"""A real browser: Debian's Chromium, driven over WebDriver."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from selenium.webdriver.remote.webelement import WebElement

#: Chromium would look for Google's hosts at every start, and wait for them where there is no internet.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",
)
_SECONDS = 60.0


class Browser:
    """What a person does in a browser, in the words of a test."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def wait(self, condition: Callable[[Chrome], Any], what: str) -> Any:
        """Wait until a condition holds, and return what it returned."""
        try:
            return WebDriverWait(self.driver, _SECONDS, ignored_exceptions=[Exception]).until(condition)
        except Exception as error:
            text = self.driver.find_element(By.TAG_NAME, "body").text
            raise AssertionError(f"not there: {what}, at {self.driver.current_url}:\n{text}") from error

    def find(self, xpath: str) -> WebElement:
        """Wait for an element that a person can see."""

        def visible(driver: Chrome) -> WebElement | None:
            return next(
                (found for found in driver.find_elements(By.XPATH, xpath) if found.is_displayed()), None
            )

        found: WebElement = self.wait(visible, xpath)
        return found

    def click(self, xpath: str) -> None:
        """Click an element as soon as it takes clicks."""

        def clicked(_: Chrome) -> bool:
            self.find(xpath).click()
            return True

        self.wait(clicked, xpath)

    def follow(self, xpath: str) -> None:
        """Click a link and look at where it leads, which Airflow 3.1 opens in another tab."""
        tabs = self.driver.window_handles
        elsewhere = self.find(xpath).get_attribute("target") == "_blank"
        self.click(xpath)
        if elsewhere:
            self.wait(lambda driver: len(driver.window_handles) > len(tabs), f"another tab for {xpath}")
            [opened] = set(self.driver.window_handles) - set(tabs)
            self.driver.switch_to.window(opened)

    def type(self, xpath: str, text: str) -> None:
        """Replace what is in a field."""
        field = self.find(xpath)
        # Not clear(): React would not hear of it.
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(text)

    def read(self, url: str, until: str) -> str:
        """Open a page, wait until it says something, and return all that it says."""
        self.driver.get(url)
        self.wait(lambda _: until in self.text(), until)
        return self.text()

    def text(self) -> str:
        """Everything that can be read on the page."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def refused(self) -> bool:
        """Whether Airflow shows an error."""
        return bool(self.driver.find_elements(By.XPATH, "//*[@data-type='error' or @data-status='error']"))

    def complaints(self) -> list[str]:
        """Errors in the browser's console: scripts that failed, files that were refused."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


@contextmanager
def browser() -> Iterator[Browser]:
    """Start Chromium with an empty profile."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail(
            f"chromium: {chromium}, chromedriver: {driver}; the tests of the UI need both. On Debian run, as root, "
            "apt-get install chromium chromium-driver; elsewhere put programs of these names into PATH"
        )
    options = ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="chromium ") as profile:
        for flag in (*_FLAGS, "--window-size=1400,1000", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        found = Chrome(options=options, service=ChromeService(driver))
        try:
            yield Browser(found)
        finally:
            found.quit()
