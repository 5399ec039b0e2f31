#!/usr/bin/python3
"""The router's status page in a headless Chromium, in front of a running stack.

  tests/deploy/status_page_test.py Shown|Lost

BATON_SCREENSHOTS=FOLDER keeps what the browser showed. Ends with 77 where chromium is not installed."""

import json
import os
import pathlib
import subprocess
import sys
import unittest
import urllib.request

import browser
import manifests
from manifests import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "tests/e2e"))
import stack  # pylint: disable=wrong-import-position

MODEL = "tiny-llama-needle"
# A name that would be an element, were it taken for markup.
MARKUP = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
SHOWN = "document.body.innerText"


def load(router, *flags):
    subprocess.run([stack.BINARIES / "baton-loadtest", "run", f"--router={router}", "--concurrency=4", "--input=64",
                    "--output=16", *flags], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def get(service, path):
    with urllib.request.urlopen(f"http://{service.metrics_address}{path}", timeout=10) as answer:
        return answer.read().decode()


class Shown(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if browser.CHROMIUM is None:
            raise unittest.SkipTest("chromium is not installed")
        cls.stack = stack.Stack(MODEL, worker_flags=[f"--model_name={MARKUP}"])
        cls.stack.__enter__()
        cls.addClassCleanup(cls.stack.__exit__)
        cls.router = cls.stack.services[-1]

    def keep(self, page, name):
        if folder := os.environ.get("BATON_SCREENSHOTS"):
            page.screenshot(pathlib.Path(folder) / f"{name}.png")

    def open(self, page):
        page.open(f"http://{self.router.metrics_address}/")
        page.wait_for("document.body?.dataset.polls >= 2")

    def test_figures_are_those_of_the_report_and_live(self):
        with browser.Browser() as page:
            self.open(page)
            # Several polls see the load, so rates and quantiles have a window.
            load(self.stack.router, "--duration=6s")
            page.wait_for("document.querySelector('#codes').innerText.includes('OK')")
            report = json.loads(get(self.router, "/status.json"))
            page.wait_for(f"reports[reports.length - 1].time_ms >= {report['time_ms']}")
            text = page.evaluate(SHOWN)
            self.assertIn("serving", text)
            for worker in report["workers"]["listed"]:
                self.assertIn(worker["address"], text)
                self.assertIn(worker["epoch"], text)
            ended = page.evaluate("reports[reports.length - 1].requests.ended_by_code.OK")
            self.assertEqual(ended, report["requests"]["ended_by_code"]["OK"])
            tiles = page.evaluate("[...document.querySelectorAll('.tile .value')].map(value => value.innerText)")
            self.assertEqual(len(tiles), 6)
            self.assertFalse([tile for tile in tiles if tile.startswith("–")], tiles)
            self.assertEqual(page.complaints, [])
            self.keep(page, "wide")

    def test_names_from_outside_are_text(self):
        with browser.Browser() as page:
            self.open(page)
            # The answer is cut to 100 bytes.
            self.assertIn(MARKUP[:90], page.evaluate(SHOWN))
            self.assertEqual(page.evaluate("document.images.length"), 0)
            self.assertEqual(page.evaluate("document.scripts.length"), 1)
            self.assertNotIn("taken", page.evaluate("document.title"))

    def test_markup_put_in_by_script_would_not_run(self):
        with browser.Browser() as page:
            self.open(page)
            page.evaluate(f"document.body.innerHTML += {json.dumps(MARKUP)}")
            page.evaluate("document.body.insertAdjacentHTML('beforeend', '<b onclick=document.title=\"taken\">x</b>')")
            page.evaluate("document.querySelector('b').click()")
            page.evaluate("new Promise(done => setTimeout(done, 200))")
            self.assertNotIn("taken", page.evaluate("document.title"))
            self.assertTrue(any("Content Security Policy" in complaint for complaint in page.complaints))

    def test_fits_a_phone_in_the_dark(self):
        with browser.Browser(width=360, height=740, dark=True) as page:
            self.open(page)
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            self.assertEqual(background, "rgb(17, 21, 27)")
            self.keep(page, "phone")

    def test_parts_have_names_for_those_who_can_not_see(self):
        with browser.Browser() as page:
            self.open(page)
            unnamed = ("[...document.querySelectorAll('section')]"
                       ".filter(part => !document.getElementById(part.getAttribute('aria-labelledby'))).length")
            self.assertEqual(page.evaluate(unnamed), 0)
            self.assertEqual(page.evaluate("document.querySelectorAll('table:not(:has(caption))').length"), 0)
            self.assertEqual(page.evaluate("document.querySelectorAll('svg:not([aria-hidden])').length"), 0)
            self.assertEqual(page.evaluate("document.documentElement.lang"), "en")


class Lost(unittest.TestCase):
    def test_page_says_when_its_router_is_gone(self):
        if browser.CHROMIUM is None:
            self.skipTest("chromium is not installed")
        with stack.Stack(MODEL, one_worker=True) as services, browser.Browser() as page:
            page.open(f"http://{services.services[-1].metrics_address}/")
            page.wait_for("document.body?.dataset.polls >= 1")
            self.assertTrue(page.evaluate("document.getElementById('lost').hidden"))
            services.services[-1].process.kill()
            page.wait_for("!document.getElementById('lost').hidden")
            self.assertIn("does not answer", page.evaluate("document.getElementById('lost').innerText"))


if __name__ == "__main__":
    sys.exit(manifests.run_part(globals()[sys.argv[1]]))
