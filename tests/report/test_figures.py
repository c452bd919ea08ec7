import pytest

from scaling.report import figures


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (0.0, "0.00"), (0.01234, "0.0123"), (1.606, "1.61"), (24.0, "24.0"), (129.6, "130"), (1234.4, "1,234"), (-2.5, "-2.50")],
)
def test_a_number_keeps_three_significant_digits(value, text):
    assert figures.number(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "—"), (0.00085, "850 us"), (0.0123, "12.3 ms"), (0.2, "200 ms"), (1.35, "1.35 s"), (90.0, "90.0 s")])
def test_a_duration_has_the_unit_that_reads_best(value, text):
    assert figures.seconds(value) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((0.81, 0.78, 0.84), "0.81 (0.78-0.84)"),
        ((0.667, 0.664, 0.669), "0.667 (0.664-0.669)"),
        ((1.0, 1.0, 1.0), "1.00"),
        ((0.81, None, 0.84), "0.81"),
        ((None, 0.7, 0.8), "—"),
    ],
)
def test_an_interval_has_one_style_and_as_many_decimals_as_it_deserves(values, text):
    assert figures.interval(*values) == text


@pytest.mark.parametrize(
    ("values", "text"),
    [((0.12, 0.09, 0.15), "12 % (9-15)"), ((-0.02, -0.04, 0.01), "-2 % (-4 to 1)"), ((-0.001, -0.02, 0.02), "0 % (-2 to 2)"), ((0.41, None, None), "41 %")],
)
def test_a_share_is_a_percentage_and_a_negative_end_stays_readable(values, text):
    assert figures.percent(*values) == text


def test_rates_of_one_table_share_a_unit():
    assert figures.rate_unit([24.0, None, 48.0]) == ("GFLOPS", 1.0)
    assert figures.rate_unit([24.0, 400_000.0]) == ("TFLOPS", 1000.0)


def test_a_listing_reads_as_english():
    assert [figures.listing(items) for items in ([], [1], [1, 2], [1, 2, 4])] == ["", "1", "1 and 2", "1, 2 and 4"]


def test_sizes_are_decimal_and_keep_three_digits():
    assert [figures.size(value) for value in (0, 512, 4096, 10_363_392, 1.35e9)] == ["0 B", "512 B", "4.10 kB", "10.4 MB", "1.35 GB"]
