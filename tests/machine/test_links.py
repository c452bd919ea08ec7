import pynvml
import pytest

from scaling.machine.cards import visible_cards
from scaling.machine.links import interconnect_of

GPU, SWITCH, UNKNOWN = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN


def bus(number: int) -> str:
    return f"00000000:{number:02X}:00.0"


@pytest.fixture
def joined(machine, card):
    """Return a function that makes a machine whose card k has ``links[k]``, and says what joins the chosen cards."""

    def build(*links, chosen=None, **options):
        machine(*(card(bus=bus(k), uuid=f"GPU-{k}", links=own, **options) for k, own in enumerate(links)))
        cards = visible_cards({})
        return interconnect_of([cards[k] for k in chosen] if chosen else cards)

    return build


@pytest.mark.parametrize("absent", [pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument])
def test_cards_without_nvlink_are_joined_by_pcie(joined, absent) -> None:
    assert joined([], [], absent_link=absent) == "pcie"


def test_cards_on_switches_are_joined_by_nvlink(joined) -> None:
    to_switch = [(1, SWITCH, "00000000:C3:00.0"), (1, SWITCH, "00000000:C4:00.0")]
    assert joined(*[to_switch] * 8) == "nvlink"


@pytest.mark.parametrize("end", [(1, UNKNOWN, "FFFFFFFF:FF:FF.F"), (1, None, "ffffffff:ff:ff.f"), (1, SWITCH, None), (1, None, None)])
def test_switches_that_a_virtual_machine_cannot_see_count_as_switches(joined, end) -> None:
    assert joined([end], [end]) == "nvlink"


def test_two_bridged_pairs_are_nvlink_within_a_pair_and_pcie_together(joined) -> None:
    links = [[(1, GPU, bus(1))] * 4, [(1, GPU, bus(0))] * 4, [(1, GPU, bus(3))] * 4, [(1, GPU, bus(2))] * 4]
    assert joined(*links, chosen=(0, 1)) == "nvlink"
    assert joined(*links, chosen=(2, 3)) == "nvlink"
    assert joined(*links, chosen=(0, 2)) == "pcie"
    assert joined(*links) == "pcie"


def test_a_link_to_a_card_that_is_not_chosen_does_not_join_the_others(joined) -> None:
    assert joined([(1, GPU, bus(2))], [(1, GPU, bus(2))], [(1, GPU, bus(0)), (1, GPU, bus(1))], chosen=(0, 1)) == "pcie"


def test_one_card_on_a_switch_and_one_without_are_joined_by_pcie(joined) -> None:
    assert joined([(1, SWITCH, None)], []) == "pcie"


def test_inactive_links_join_nothing(joined) -> None:
    assert joined([(0, GPU, bus(1))], [(0, GPU, bus(0))]) == "pcie"


def test_a_cube_mesh_is_nvlink_although_not_every_pair_is_linked(joined) -> None:
    neighbours = {0: (1, 2, 3, 6), 1: (0, 2, 3, 5), 2: (0, 1, 3, 4), 3: (0, 1, 2, 7), 4: (2, 5, 6, 7), 5: (1, 4, 6, 7), 6: (0, 4, 5, 7), 7: (3, 4, 5, 6)}
    assert joined(*[[(1, GPU, bus(other)) for other in neighbours[k]] for k in range(8)]) == "nvlink"


def test_one_card_has_no_interconnect(joined) -> None:
    assert joined([(1, SWITCH, None)]) is None


def test_without_a_driver_the_interconnect_is_unknown(monkeypatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    assert interconnect_of([]) is None


def test_an_nvml_failure_leaves_the_interconnect_unknown_and_is_warned_of(joined, caplog) -> None:
    assert joined([], [], absent_link=pynvml.NVMLError_Unknown) is None
    assert "cannot tell" in caplog.text
