import pynvml
import pytest

from scaling.errors import UserError
from scaling.machine.cards import visible_cards, visible_indices

UUIDS = ["GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000"]


def no_driver(error: type[pynvml.NVMLError]):
    def init() -> None:
        raise error

    return init


@pytest.mark.parametrize("error", [pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded])
def test_without_a_driver_there_are_no_cards_and_no_warning(error, monkeypatch, caplog) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", no_driver(error))
    assert visible_cards({}) == ()
    assert not caplog.records


def test_a_driver_that_does_not_answer_is_warned_of(monkeypatch, caplog) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", no_driver(pynvml.NVMLError_LibRmVersionMismatch))
    assert visible_cards({}) == ()
    assert "does not answer" in caplog.text


def test_a_card_is_described_by_its_pci_device_id_memory_and_power_limit(machine, card) -> None:
    state = machine(card())
    (found,) = visible_cards({})
    assert (found.card, found.index, found.name) == (0, 0, "NVIDIA H100 80GB HBM3")
    assert found.pci_device_id == "2330"
    assert found.memory_bytes == 81559 * 2**20
    assert found.power_limit_watts == 700.0
    assert (state.opened, state.closed) == (1, 1)


def test_a_pci_device_id_keeps_its_leading_zeros(machine, card) -> None:
    machine(card(pci_device_id=0x0DF4))
    assert visible_cards({})[0].pci_device_id == "0DF4"


def test_a_card_without_power_limit_and_mig_mode_is_listed(machine, card) -> None:
    machine(card(power_limit_milliwatts=None, mig=None))
    assert visible_cards({})[0].power_limit_watts is None


def test_cards_follow_the_order_of_cuda_visible_devices(machine, card) -> None:
    machine(*(card(uuid=uuid) for uuid in UUIDS))
    found = visible_cards({"CUDA_VISIBLE_DEVICES": "2,GPU-aaaa1"})
    assert [(entry.card, entry.index, entry.uuid) for entry in found] == [(0, 2, UUIDS[2]), (1, 0, UUIDS[0])]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, (0, 1, 2)),
        ("", ()),
        ("-1", ()),
        ("1", (1,)),
        (" 2 , 0", (2, 0)),
        ("0,7,1", (0,)),
        ("0,-1,1", (0,)),
        ("NoDevFiles", ()),
        ("GPU-bbbb,GPU-aaaa2222-0000", (2, 1)),
        ("1,GPU-aaaa", (1,)),
    ],
)
def test_cuda_visible_devices_hides_what_cuda_would_hide(variable, expected) -> None:
    assert visible_indices(variable, UUIDS) == expected


@pytest.mark.parametrize(("variable", "complaint"), [("0,0", "card 0 twice"), ("0,GPU-aaaa1", "card 0 twice"), ("MIG-1234", "MIG slice")])
def test_cards_named_twice_and_mig_slices_are_refused(variable, complaint) -> None:
    with pytest.raises(UserError, match=complaint):
        visible_indices(variable, UUIDS)


def test_a_visible_card_split_by_mig_is_refused_and_a_hidden_one_is_not(machine, card) -> None:
    state = machine(card(mig=1, uuid=UUIDS[0]), card(uuid=UUIDS[1]))
    with pytest.raises(UserError, match="card 0 is split by MIG"):
        visible_cards({})
    assert state.opened == state.closed
    assert [entry.index for entry in visible_cards({"CUDA_VISIBLE_DEVICES": "1"})] == [1]


def test_a_lost_card_is_named(machine, card, monkeypatch) -> None:
    machine(card(), card(uuid=UUIDS[1]))

    def lost(handle) -> None:
        if handle.uuid == UUIDS[1]:
            raise pynvml.NVMLError_GpuIsLost

    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lost)
    with pytest.raises(UserError, match="card 1 does not answer NVML"):
        visible_cards({})


@pytest.mark.gpu
def test_cards_of_this_machine_have_uuid_memory_and_pci_device_id() -> None:
    cards = visible_cards()
    if not cards:
        pytest.skip("no CUDA card on this machine")
    for entry in cards:
        assert entry.uuid.startswith("GPU-")
        assert entry.memory_bytes > 2**30
        assert len(entry.pci_device_id) == 4
