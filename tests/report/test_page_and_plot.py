import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib.image
import pytest

from scaling.report.html import write_page
from scaling.report.plot import draw

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Checks that tags nest, and collects text and everything that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.fetched, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read_page(path):
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert page.open == []
    return page


def test_the_page_is_whole_in_one_file_and_fetches_nothing(tmp_path, curve):
    draw(curve, tmp_path)
    path = write_page(curve, tmp_path)
    page = read_page(path)
    assert len(page.fetched) == 1 and page.fetched[0].startswith("data:image/png;base64,")
    assert "script" not in page.tags and "link" not in page.tags
    assert "http" not in path.read_text() and "@import" not in path.read_text() and "url(" not in path.read_text()
    text = " ".join(page.text)
    for part in (
        "2 cards deliver 1.62x one card",
        "Measured gpt_tiny with ddp",
        "0.81 (0.78-0.84)",
        "12 % (9-15)",
        "Example CPU",
        '"torch": "2.13.0"',
        "it is not MFU",
    ):
        assert part in text


def test_the_page_escapes_what_comes_from_the_run(tmp_path, make_result, make_point, failed_point):
    evil = "<script>alert('x')</script>"
    error = replace(failed_point.error, message=evil, host="<b>")
    result = make_result(make_point(1, model=evil, notes=(evil,)), replace(failed_point, error=error), config={evil: evil}, command=(evil,), run_id=evil)
    page = read_page(write_page(result, tmp_path))
    assert "script" not in page.tags and "b" not in page.tags
    assert "".join(page.text).count(evil) >= 6


def test_a_page_without_a_picture_or_a_point_is_still_a_page(tmp_path, make_result):
    page = read_page(write_page(make_result(interrupted=True), tmp_path))
    assert "img" not in page.tags and "Interrupted" in " ".join(page.text)


@pytest.mark.parametrize("name", ["one", "two", "failed", "many", "without_flops", "nothing"])
def test_the_picture_decodes_and_is_not_blank(tmp_path, make_result, make_point, failed_point, name):
    results = {
        "one": make_result(make_point(1)),
        "two": make_result(make_point(1), make_point(2, {"exposed_communication": 0.12, "contention": -0.03})),
        "failed": make_result(failed_point),
        "many": make_result(*[make_point(gpus, {"overhead": 0.01 * gpus}) for gpus in (1, 2, 4, 8, 16, 32)]),
        "without_flops": make_result(make_point(2, aggregate_gflops=None, sum_of_cards_gflops=None, scaling_efficiency=None, loss={})),
        "nothing": make_result(),
    }
    path = draw(results[name], tmp_path)
    pixels = matplotlib.image.imread(path)
    assert path.name == "scaling.png"
    assert pixels.shape[0] >= 600 and pixels.shape[1] >= 1200
    assert pixels[..., :3].std() > 0.02


def test_the_picture_shows_a_failure_in_its_own_colour(tmp_path, make_result, make_point, failed_point):
    orange = (0xD5 / 255, 0x5E / 255, 0x00)

    def orange_pixels(result):
        pixels = matplotlib.image.imread(draw(result, tmp_path))[..., :3]
        return int((abs(pixels - orange).max(axis=-1) < 0.01).sum())

    assert orange_pixels(make_result(make_point(1), make_point(2))) == 0
    assert orange_pixels(make_result(make_point(1), failed_point)) > 50


def test_the_report_room_imports_neither_torch_nor_mlflow_nor_matplotlib_before_it_needs_them():
    rooms = "scaling.report.console, scaling.report.html, scaling.report.plot, scaling.report.store, scaling.tracking"
    program = f"import sys, {rooms}; print(sorted({{'torch', 'mlflow', 'matplotlib', 'jsonschema', 'numpy'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
