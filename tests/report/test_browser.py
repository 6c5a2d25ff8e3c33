"""The report in a real browser: Chromium without a screen, driven by Playwright."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import SCHEMES, SIZES, chromium, serious_findings
from fedgen.full_report import write_report
from reproduction_folder import prototype_table, reproduce
from run_folders import records_of, run_folder, summary_of


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    first = run_folder(place / "paper", algorithms=["fedavg", "fedprox", "feddistill", "fedgen"], seeds=3)
    return [first, run_folder(place / "reference", preset="reference", alpha=1.0)]


@pytest.fixture(scope="module")
def html(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(folders, path)
    return path


class Opened:
    """The page, and what the browser complained about or asked for while it was open."""

    def __init__(self, browser: Any, html: Path, **options: Any) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.context.set_default_timeout(600_000)  # a slow machine is no failure
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(html.as_uri())
        self.html = html

    def column(self, title: str) -> list[str]:
        table = self.page.locator("table.sortable").first
        titles = [text.strip() for text in table.locator("th").all_inner_texts()]
        at = titles.index(title) + 1
        return table.locator(f"tbody td:nth-child({at}) span").all_inner_texts()

    def curve(self, name: str) -> Any:
        return self.page.locator("figure").first.locator(f"path[data-curve='{name}']")

    def legend(self, name: str) -> Any:
        return self.page.locator("figure").first.locator(".legend button", has_text=name)


@pytest.fixture
def opened(browser: Any, html: Path) -> Iterator[Opened]:
    page = Opened(browser, html, viewport={"width": 1200, "height": 900})
    yield page
    assert page.complaints == []
    # The page itself; what it makes out of itself to save is `blob:`, and the empty icon is `data:`.
    outside = [url for url in page.requests if not url.startswith(("blob:", "data:"))]
    assert outside == [html.as_uri()]
    page.context.close()


def test_it_opens_quietly_and_draws_everything(opened: Opened) -> None:
    page = opened.page
    assert page.locator("figure svg[role=img]").count() == 4, "curves and partition of two groups"
    assert page.locator("path[data-curve]").count() == 4 + 2
    assert page.locator("polygon[data-band]").count() == 4 + 2
    assert page.locator("nav a").count() == 2


def test_numbers_are_those_of_the_files(opened: Opened, folders: list[Path]) -> None:
    summary = summary_of(folders[0])
    assert opened.column("algorithm") == [row["algorithm"] for row in summary["table"]]
    assert opened.column("score") == [f"{row['mean']:.2f}" for row in summary["table"]]
    differences = [row["diff_to_fedavg"] for row in summary["table"]]
    shown = [text.split()[-1].replace("−", "-") for text in opened.column("vs fedavg")]
    assert shown == ["–" if value is None else f"{value:+.2f}" for value in differences]
    values = opened.page.locator("table.sortable").first.locator("tbody tr td:nth-child(2)")
    exact = [float(cell.get_attribute("data-sort")) for cell in values.all()]
    assert exact == [row["mean"] for row in summary["table"]]
    bubbles = opened.page.locator("figure").nth(1).locator("circle").all()
    counts = [tuple(int(b.get_attribute(f"data-{k}")) for k in ("user", "label", "count")) for b in bubbles]
    assert counts == [(0, 0, 5), (1, 1, 7), (2, 0, 3), (2, 1, 3), (3, 0, 1), (3, 1, 120)]
    radius = [float(bubble.get_attribute("r")) for bubble in bubbles]
    assert (radius[5] / radius[1]) ** 2 == pytest.approx(120 / 7, rel=0.01), "the area is the number of samples"


def test_hovering_reads_the_mean_of_the_evaluations(opened: Opened, folders: list[Path]) -> None:
    plot = opened.page.locator("figure").first.locator(".plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + 60)
    tip = plot.locator(".tip")
    at = int(tip.locator("b").inner_text().removeprefix("round "))
    for name in ("fedavg", "fedgen"):
        values = [r["accuracy"] for r in records_of(folders[0]) if (r["algorithm"], r["round"]) == (name, at)]
        cells = tip.locator(f"tr[data-tip={name}] td").all_inner_texts()
        assert cells[2] == f"{sum(values) / 3:.2f}"
        assert cells[3] == f"{min(values):.2f} … {max(values):.2f}"
    assert tip.bounding_box()["height"] < box["height"] / 2, "it does not hide the figure"
    opened.page.mouse.move(box["x"] + box["width"] / 2, box["y"] - 40)
    assert tip.is_hidden()
    plot.focus()
    opened.page.keyboard.press("ArrowLeft")
    assert tip.locator("b").inner_text() == "round 20"


def test_the_legend_hides_a_curve_and_shows_it_again(opened: Opened) -> None:
    assert opened.curve("fedgen").count() == 1
    opened.legend("fedgen").click()
    assert opened.curve("fedgen").count() == 0
    assert opened.page.locator("figure").first.locator("polygon[data-band='fedgen']").count() == 0
    assert opened.legend("fedgen").get_attribute("aria-pressed") == "false"
    assert opened.curve("fedavg").count() == 1
    opened.legend("fedgen").click()
    assert opened.curve("fedgen").count() == 1
    opened.legend("fedprox").dblclick()
    assert opened.page.locator("figure").first.locator("path[data-curve]").count() == 1
    assert opened.curve("fedprox").count() == 1


def test_metric_and_axis_can_be_chosen(opened: Opened) -> None:
    figure = opened.page.locator("figure").first
    before = opened.curve("fedavg").get_attribute("d")
    figure.locator("select").first.select_option("train_loss")
    assert opened.curve("fedavg").get_attribute("d") != before
    assert "training loss" in figure.locator("svg[role=img]").first.text_content()
    figure.locator("select").first.select_option("accuracy_users")
    assert opened.curve("fedavg").count() == 0, "it has no models of the users' own"
    assert opened.curve("feddistill").count() == 1
    figure.locator("select").nth(1).select_option("MB")
    text = figure.locator("svg[role=img]").first.text_content()
    assert "MB sent" in text
    assert "60" in text, "20 rounds of 3 MB"


def test_the_table_sorts_by_a_column(opened: Opened) -> None:
    header = opened.page.locator("table.sortable").first.locator("th button")
    header.nth(1).click()
    assert opened.column("algorithm") == ["fedgen", "fedavg", "fedprox", "feddistill"]
    header.nth(1).click()
    assert opened.column("algorithm") == ["feddistill", "fedprox", "fedavg", "fedgen"]
    header.nth(2).click()
    assert opened.column("algorithm") == ["fedgen", "fedprox", "feddistill", "fedavg"], "what has no value is last"
    header.nth(2).click()
    assert opened.column("algorithm") == ["feddistill", "fedprox", "fedgen", "fedavg"]
    header.nth(0).click()
    assert opened.column("algorithm") == ["fedavg", "feddistill", "fedgen", "fedprox"]


def test_figures_are_saved_as_they_are_shown(opened: Opened, tmp_path: Path) -> None:
    opened.legend("fedprox").click()
    for number, (kind, start) in enumerate((("SVG", b"<?xml"), ("PNG", b"\x89PNG"))):
        for figure in range(2):
            with opened.page.expect_download() as download:
                opened.page.locator("figure").nth(figure).locator(".push button").nth(number).click()
            path = tmp_path / download.value.suggested_filename
            download.value.save_as(path)
            assert path.suffix == f".{kind.lower()}"
            assert path.read_bytes().startswith(start)
            assert path.stat().st_size > 2000
    text = (tmp_path / "runs-1-curves.headline.svg").read_text()
    assert "accuracy, full test set" in text, "what was chosen is said in it"
    assert "fedgen" in text, "the legend comes along"
    assert "fedprox" not in text, "it was hidden"


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_shows_all_without_scrolling_the_page_sideways(browser: Any, html: Path, width: int) -> None:
    phone = Opened(browser, html, viewport={"width": width, "height": 800}, has_touch=True, is_mobile=True)
    size = phone.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert size == [width, width]
    drawing = phone.page.locator("figure svg[role=img]").first.bounding_box()
    assert drawing["x"] >= 0
    assert drawing["x"] + drawing["width"] <= width
    assert phone.complaints == []
    phone.context.close()


def test_dark_mode_print_and_the_switch(browser: Any, html: Path) -> None:
    dark = Opened(browser, html, color_scheme="dark")
    brightness = (
        "(() => { const f = (c) => c.match(/[\\d.]+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0);"
        " const s = getComputedStyle(document.body); return [f(s.backgroundColor), f(s.color)]; })()"
    )
    curve = "document.querySelector('path[data-curve=fedavg]').getAttribute('stroke')"
    back, ink = dark.page.evaluate(brightness)
    assert back < 150 < 600 < ink
    in_dark = dark.page.evaluate(curve)
    dark.page.locator("#theme").click()  # auto -> light
    back, ink = dark.page.evaluate(brightness)
    assert ink < 150 < 600 < back
    assert dark.page.evaluate(curve) != in_dark
    dark.page.locator("#theme").click()  # light -> dark
    dark.page.emulate_media(media="print")
    back, ink = dark.page.evaluate(brightness)
    assert ink < 150 < 600 < back, "paper is white, whatever the screen was"
    assert dark.page.locator("#theme").is_hidden()
    dark.page.wait_for_function(f"{curve} !== '{in_dark}'")
    assert dark.complaints == []
    dark.context.close()


def test_a_reproduction_has_views_of_its_table_and_published_points(browser: Any, tmp_path: Path) -> None:
    rows = ("mnist-0.05", "mnist-0.1", "mnist-1", "mnist-10")
    table = reproduce(tmp_path / "results", "heterogeneity", rows=rows)
    write_report([tmp_path / "results"], tmp_path / "report.html")
    opened = Opened(browser, tmp_path / "report.html", viewport={"width": 1200, "height": 900})
    tables = opened.page.locator("table.sortable")
    assert [tables.nth(i).is_visible() for i in range(tables.count())] == [True, False, False]

    def numbers(view: int) -> list[str]:
        return tables.nth(view).locator("tbody tr:nth-child(2) td:nth-child(n + 2) > span").all_inner_texts()

    entries = table["cells"]["mnist-0.1"].values()
    assert numbers(0) == [f"{entry['mean']:.2f}" for entry in entries]
    opened.page.locator(".views select").select_option("The authors' metric")
    assert [tables.nth(i).is_visible() for i in range(tables.count())] == [False, False, True]
    assert numbers(2) == [f"{entry['metrics']['authors']['mean']:.2f}" for entry in entries]

    figure = opened.page.locator("figure").first
    printed = [entry["published"] for row in rows for entry in table["cells"][row].values()]
    assert figure.locator("circle[data-published]").count() == len(printed) == 28
    marks = figure.locator("svg[role=img] text").all_text_contents()
    assert {"0.05", "0.1", "1", "10"} <= set(marks)

    curves = opened.page.locator("figure").nth(1)
    path = curves.locator("path[data-curve='FedAvg']")
    before = path.get_attribute("d")
    curves.get_by_label("what is shown").select_option("mnist-0.1")
    curves.get_by_label("which metric").select_option("accuracy, labels a user trained on")
    assert path.get_attribute("d") != before
    cell = json.loads(
        (tmp_path / "results" / "cells" / f"{table['cells']['mnist-0.1']['fedavg']['id']}.json").read_text()
    )
    last = [result["curve_seen_labels"][-1] for result in cell["results"]]
    curves.locator(".plot").focus()
    opened.page.keyboard.press("ArrowLeft")
    assert "accuracy, labels a user trained on, %" in curves.locator("svg[role=img] text").all_text_contents()
    assert "MNIST, α = 0.1" in curves.locator(".choice").text_content()
    shown = curves.locator("tr[data-tip='FedAvg'] strong").inner_text()
    assert float(shown) == pytest.approx(sum(last) / len(last), abs=0.0051)
    assert opened.complaints == []
    opened.context.close()


def test_the_prototypes_panels_say_what_is_predicted_where(browser: Any, tmp_path: Path) -> None:
    prototype_table(tmp_path / "results")
    write_report([tmp_path / "results"], tmp_path / "report.html")
    opened = Opened(browser, tmp_path / "report.html", viewport={"width": 1000, "height": 2000})
    panels = opened.page.locator("rect[data-panel]")
    assert panels.count() == 7
    assert opened.page.locator("rect[data-frame]").get_attribute("data-frame") == "After 500 steps"
    box = panels.first.bounding_box()
    tip = opened.page.locator("figure .tip")
    # Rows are from the bottom: "01" below, "00" above.
    for right, down, label in ((0.25, 0.75, 1), (0.75, 0.75, 2), (0.75, 0.25, 1)):
        opened.page.mouse.move(box["x"] + right * box["width"], box["y"] + down * box["height"])
        assert tip.inner_text() == f"User 1\nlabel {label} is predicted here"
    assert opened.complaints == []
    opened.context.close()


def test_a_table_wider_than_the_window_says_so_until_its_end_is_in_sight(browser: Any, html: Path) -> None:
    for width, wide_enough in ((1280, True), (700, False)):
        page = Opened(browser, html, viewport={"width": width, "height": 900}).page
        place, more = page.locator(".scroll").first, page.locator(".more").first
        last = place.locator("th").last
        assert last.inner_text().strip() == "train s"
        end = last.bounding_box()
        box = place.bounding_box()
        in_sight = end["x"] + end["width"] <= box["x"] + box["width"] + 1
        assert in_sight or not wide_enough
        assert more.is_visible() is not in_sight
        if not in_sight:
            place.evaluate("place => { place.scrollLeft = place.scrollWidth; }")
            more.wait_for(state="hidden")
        page.context.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_axe_finds_nothing_serious_on_the_report(browser: Any, html: Path, size: tuple[int, int], scheme: str) -> None:
    width, height = size
    page = Opened(browser, html, viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True)
    page.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.legend("fedprox").click()  # a curve that is hidden
    page.page.mouse.move(0, 0)
    page.page.evaluate("Promise.all(document.getAnimations().map(one => one.finished))")  # what fades has faded
    assert serious_findings(page.page) == []
    page.context.close()
