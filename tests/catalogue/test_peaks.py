import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.catalogue.load import load_cards
from scaling.catalogue.peaks import missing_peak_message, peak, total, utilisation

CARDS = load_cards()


@pytest.mark.parametrize(("precision", "tflops"), [("fp32", 66.9), ("tf32", 494.7), ("bf16", 989.4), ("fp16", 989.4)])
def test_each_precision_has_its_own_row(precision, tflops: float) -> None:
    found = peak(CARDS["h100_sxm_80g"], precision)
    assert found.gflops == pytest.approx(tflops * 1e3)
    assert (found.hardware, found.dtype) == ("h100_sxm_80g", precision)
    assert "NVIDIA H100 datasheet" in found.source


@pytest.mark.parametrize(("name", "precision"), [("t4", "bf16"), ("t4", "tf32"), ("v100_sxm2_32g", "bf16"), ("rtx2080ti", "bf16"), ("mi250x", "tf32")])
def test_a_card_without_units_for_a_dtype_has_no_peak_and_the_message_names_the_key(name: str, precision) -> None:
    assert peak(CARDS[name], precision) is None
    assert f"peak_tflops.{precision}" in missing_peak_message(CARDS[name], precision)


def test_mixed_cards_add_their_peaks_and_are_both_named() -> None:
    pair = total([peak(CARDS["rtx4090"], "bf16"), peak(CARDS["rtx3090"], "bf16"), peak(CARDS["rtx4090"], "bf16")])
    assert pair.gflops == pytest.approx(165_200 + 71_200 + 165_200)
    assert pair.hardware == "rtx4090 + rtx3090"
    assert CARDS["rtx4090"].source in pair.source
    assert CARDS["rtx3090"].source in pair.source


def test_equal_cards_are_named_once() -> None:
    eight = total([peak(CARDS["h100_sxm_80g"], "bf16")] * 8)
    assert (eight.hardware, eight.source) == ("h100_sxm_80g", CARDS["h100_sxm_80g"].source)
    assert eight.gflops == pytest.approx(8 * 989_400)


def test_one_unknown_card_leaves_the_sum_unknown() -> None:
    assert total([peak(CARDS["rtx4090"], "bf16"), peak(CARDS["t4"], "bf16")]) is None
    assert total([]) is None


def test_peaks_of_different_dtypes_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="different dtypes"):
        total([peak(CARDS["rtx4090"], "bf16"), peak(CARDS["rtx4090"], "fp32")])


def test_mfu_is_flops_per_second_over_the_peak() -> None:
    two = total([peak(CARDS["a100_sxm_80g"], "bf16")] * 2)
    half = utilisation("MFU", int(312e12), 1.0, two)
    assert half.value == pytest.approx(0.5)
    assert half.note == ""


def test_a_full_peak_is_allowed_and_more_is_withheld_with_the_reason() -> None:
    one = total([peak(CARDS["a100_sxm_80g"], "fp32")])
    assert utilisation("MFU", int(19.5e12), 1.0, one).value == 1.0
    # TF32 left on under an fp32 label is how this happens.
    above = utilisation("HFU", int(100e12), 1.0, one)
    assert above.value is None
    assert above.note.startswith("HFU withheld: 512.8% of the dense fp32 peak of a100_sxm_80g (19,500 GFLOPS)")


def test_without_a_peak_the_figure_is_withheld_with_the_reason() -> None:
    assert utilisation("MFU", 1, 1.0, None).value is None
    assert "MFU withheld" in utilisation("MFU", 1, 1.0, None).note


def test_a_step_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="0 s"):
        utilisation("MFU", 1, 0, total([peak(CARDS["t4"], "fp16")]))


@given(st.integers(1, 10**18), st.floats(1e-6, 1e4), st.integers(1, 64))
def test_no_utilisation_is_above_one_and_it_falls_with_more_cards(flops: int, seconds: float, cards: int) -> None:
    one = peak(CARDS["h100_sxm_80g"], "bf16")
    alone = utilisation("MFU", flops, seconds, total([one])).value
    many = utilisation("MFU", flops, seconds, total([one] * cards)).value
    assert many is None or 0 < many <= 1
    if alone is not None:
        assert many == pytest.approx(alone / cards)
