"""The page in a real browser: what it shows, what it asks for, what hostile names do to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sglang_eagle3_patch.acceptance.report.words import printable
from sglang_eagle3_patch.cli import main
from tests.unit.report import traces
from tests.unit.report.browser import NoBrowser, Page, chromium

CHARTS = ["over-time", "distribution", "positions", "batches", "speedup"]
HOSTILE = [
    "<script>window.hit = 1</script>",
    "\"><img src=x onerror='window.hit = 1'>",
    "</table></main><svg onload='window.hit = 1'>",
    "{{ 7 * 7 }}&lt;b&gt;",
    "\x1b[31m\x00\u202e reversed",
    "https://example.com/" + "a" * 400,
]
WIDTH, PHONE = 1280, 375


@dataclass(frozen=True)
class Shown:
    """A page that is open in a browser, and what `--json` says of the same trace."""

    page: Page
    url: str
    data: dict[str, Any]

    def table(self, caption: str) -> list[list[str]]:
        """The cells of the table whose caption begins so, row by row, folded away or not."""
        return self.page.evaluate(
            f"""[...document.querySelectorAll("table")]
                .filter(t => t.caption.textContent.startsWith({json.dumps(caption)}))
                .flatMap(t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent)))
            """
        )


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    try:
        with chromium() as page:
            yield page
    except NoBrowser as reason:
        if os.environ.get("CI"):  # where it must not be skipped in silence
            raise
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A page of two ranks of a server that adapts its steps, by clients that mean harm."""
    folder = tmp_path_factory.mktemp("report")
    steps = list(traces.steps(4000, rates=(0.9, 0.8, 0.6, 0.3), proposed=(2, 4)))
    for step in steps:
        if (number := step["step"] // 40) < len(HOSTILE):
            step["requests"][0], step["accepted"][0] = HOSTILE[number], 0  # among the worst
    start = traces.START | {"num_steps": 4, "draft_tokens": 5, "algorithm": "<b>EAGLE3</b>"}
    path = folder / "<i>trace.jsonl"
    traces.write(path, start, *steps[:3000], {"kind": "dropped", "time": 1.0, "records": 12})
    traces.write(
        folder / "<i>trace.dp1.jsonl", start, *({**step, "rank": 1} for step in steps[3000:])
    )
    page = folder / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr("sys.stdout.write", printed.append)
        assert main(["report", str(path), "--html", str(page), "--json"]) == 0
    return page, json.loads("".join(printed))


@pytest.fixture(scope="module", params=["light", "dark"])
def shown(
    browser: Page, report: tuple[Path, dict[str, Any]], request: pytest.FixtureRequest
) -> Shown:
    file, data = report
    browser.open(file.as_uri(), width=WIDTH, dark=request.param == "dark")
    return Shown(browser, file.as_uri(), data)


def test_nothing_is_fetched_and_nothing_is_reported(shown: Shown) -> None:
    asked = [event["request"]["url"] for event in shown.page.heard("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [shown.url]
    assert shown.page.heard("Runtime.consoleAPICalled") == []
    assert shown.page.heard("Runtime.exceptionThrown") == []
    assert shown.page.heard("Log.entryAdded") == []


def test_the_browser_would_tell_of_a_request_and_an_error(browser: Page, tmp_path: Path) -> None:
    """What the test above relies on."""
    page = tmp_path / "bad.html"
    page.write_text("<img src='missing.png'><script>console.log(1); throw Error()</script>")
    browser.open(page.as_uri(), width=WIDTH)
    assert len(browser.heard("Network.requestWillBeSent")) == 2
    assert browser.heard("Runtime.consoleAPICalled")
    assert browser.heard("Runtime.exceptionThrown")


def test_every_chart_is_drawn_and_to_scale(shown: Shown) -> None:
    drawn = shown.page.evaluate(
        """[...document.querySelectorAll("figure")].map(figure => {
            const svg = figure.querySelector("svg").getBoundingClientRect();
            const marks = [...figure.querySelectorAll("svg rect, svg path, svg circle")];
            return {
                id: figure.id, width: svg.width, height: svg.height,
                bars: [...figure.querySelectorAll("svg rect")].map(
                    bar => bar.getBoundingClientRect().height),
                points: figure.querySelectorAll("svg circle").length,
                outside: [...marks, ...figure.querySelectorAll("svg text")].filter(mark => {
                    const box = mark.getBoundingClientRect();
                    return box.left < svg.left - 1 || box.right > svg.right + 1
                        || box.top < svg.top - 1 || box.bottom > svg.bottom + 1;
                }).length,
            };
        })"""
    )
    assert [chart["id"] for chart in drawn] == CHARTS
    for chart in drawn:
        assert chart["width"] > 300
        assert chart["height"] > 150
        assert chart["outside"] == 0
    values = {
        "distribution": [d["share"] for d in shown.data["distribution"]],
        "positions": [
            p[rate] for p in shown.data["positions"] for rate in ("unconditional", "conditional")
        ],
        "batches": [batch["accept_length"] for batch in shown.data["batches"]],
        "speedup": [option["speedup"] for option in shown.data["speedup"]["options"]],
    }
    bars = {chart["id"]: chart["bars"] for chart in drawn}
    for chart, expected in values.items():
        tallest, most = max(bars[chart]), max(expected)
        heights = [height / tallest for height in bars[chart]]
        assert heights == pytest.approx([value / most for value in expected], abs=0.01)
    telling = [point for point in shown.data["over_time"] if point["verifies"] >= 10]
    assert drawn[0]["points"] == len(telling) > 50


def test_what_the_page_says_is_what_json_says(shown: Shown) -> None:
    data = shown.data
    text = shown.page.evaluate(
        """Object.fromEntries(
            [...document.querySelectorAll("[id]")].map(e => [e.id, e.textContent]))"""
    )
    total, speedup = data["total"], data["speedup"]
    assert text["accept-length"] == f"{total['accept_length']:.3f}"
    assert text["accept-rate"] == f"{total['accept_rate']:.3f}"
    assert text["steps"] == str(total["steps"]) == "4000"
    assert text["present"] == str(speedup["present"])
    assert text["choice"] == str(speedup["choice"]["steps"])
    assert text["choice-tokens"] == str(speedup["choice"]["draft_tokens"])
    assert text["cost"] == f"{speedup['cost']['ratio']:.3f}"
    assert text["dropped"] == str(data["provenance"]["dropped"]) == "12"
    assert shown.table("Accepted drafts") == [
        [str(d["accepted"]), str(d["verifies"]), f"{d['share']:.3f}"] for d in data["distribution"]
    ]
    assert [row[3:] for row in shown.table("Acceptance by draft position")] == [
        [f"{p['unconditional']:.3f}", f"{p['conditional']:.3f}"] for p in data["positions"]
    ]
    assert [row[1:3] for row in shown.table("Acceptance by time")] == [
        [str(point["steps"]), f"{point['accept_length']:.3f}"] for point in data["over_time"]
    ]
    assert [row[1:3] for row in shown.table("Acceptance by batch size")] == [
        [str(batch["steps"]), f"{batch['accept_length']:.3f}"] for batch in data["batches"]
    ]
    assert [row[:3] for row in shown.table("Acceptance by data-parallel rank")] == [
        [str(rank["rank"]), str(rank["steps"]), f"{rank['accept_length']:.3f}"]
        for rank in data["ranks"]
    ]
    assert [row[:4] for row in shown.table("Expected by number of draft steps")] == [
        [
            str(option["steps"]),
            *(f"{option[name]:.3f}" for name in ("expected_length", "speedup", "against_present")),
        ]
        for option in speedup["options"]
    ]
    for end in ("worst", "best"):
        assert shown.table(end.capitalize()) == [
            [printable(r["id"]), str(r["steps"]), f"{r['accept_length']:.3f}"]
            for r in data["requests"][end]
        ]


def test_hostile_names_are_text(shown: Shown) -> None:
    named = {r["id"] for end in ("worst", "best") for r in shown.data["requests"][end]}
    assert set(HOSTILE) <= named  # else this shows nothing
    assert shown.page.evaluate("window.hit") is None
    found = shown.page.evaluate(
        """["script", "img", "b", "h1", "main", "link[href^=http], a"].map(
            name => document.querySelectorAll(name).length)"""
    )
    assert found == [0, 0, 0, 1, 1, 0]
    assert shown.page.evaluate("document.querySelectorAll('svg').length") == len(CHARTS)
    text = shown.page.evaluate("document.body.textContent")
    assert "<b>EAGLE3</b>" in text
    assert "<i>trace.jsonl" in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_screen_readers_hear_what_the_charts_show(shown: Shown) -> None:
    nodes = shown.page.call("Accessibility.getFullAXTree")["nodes"]
    pictures = {
        node["name"]["value"]: node.get("description", {}).get("value", "")
        for node in nodes
        if node.get("role", {}).get("value") in ("image", "img")
    }
    titles = shown.page.evaluate(
        "[...document.querySelectorAll('figure')].map(f => f.querySelector('h2').textContent)"
    )
    assert len(titles) == len(CHARTS)
    assert all(any(name.startswith(title) for name in pictures) for title in titles)
    assert shown.page.evaluate("document.documentElement.lang") == "en"
    unnamed = "[...document.querySelectorAll('table')].filter(t => !t.caption?.textContent).length"
    assert shown.page.evaluate(unnamed) == 0


def test_text_stands_out_from_what_it_is_on(shown: Shown) -> None:
    """WCAG 2.1 asks for a contrast of 4.5 for text, and of 3 for what a chart is made of."""
    colours = shown.page.evaluate(
        """(() => {
            const of = (selector, property) =>
                getComputedStyle(document.querySelector(selector))[property];
            return {
                card: of(".card", "backgroundColor"), body: of("body", "backgroundColor"),
                warning: of(".warn", "backgroundColor"), told: of(".warn", "color"),
                texts: [of(".card", "color"), of(".card dt", "color"), of("svg text", "fill"),
                    of("tr.marked", "color")],
                marks: [of(".series0", "fill"), of(".series1", "fill"), of(".marked", "fill")],
            };
        })()"""
    )
    assert all(_contrast(text, colours["card"]) >= 4.5 for text in colours["texts"])
    assert all(_contrast(mark, colours["card"]) >= 3 for mark in colours["marks"])
    assert _contrast(colours["told"], colours["warning"]) >= 4.5


def test_the_themes_differ(browser: Page, report: tuple[Path, dict[str, Any]]) -> None:
    grounds = []
    for dark in (False, True):
        browser.open(report[0].as_uri(), width=WIDTH, dark=dark)
        grounds.append(_luminance(browser.evaluate("getComputedStyle(document.body).background")))
    assert grounds[0] > 0.8
    assert grounds[1] < 0.05


def test_a_phone_shows_it_without_scrolling_aside(
    browser: Page, report: tuple[Path, dict[str, Any]]
) -> None:
    browser.open(report[0].as_uri(), width=PHONE)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") <= PHONE
    smallest = browser.evaluate(
        """Math.min(...[...document.querySelectorAll("svg")].map(svg =>
            parseFloat(getComputedStyle(svg.querySelector("text")).fontSize)
            * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))"""
    )
    assert smallest >= 10  # pixels


def _luminance(colour: str) -> float:
    """Relative luminance, as WCAG defines it, of a colour in the words of a browser."""
    parts = colour[colour.index("(") + 1 : colour.index(")")].split(",")
    red, green, blue = (
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (float(part) / 255 for part in parts[:3])
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)
