from pathlib import Path

import pytest
import yaml

from scaling import paths
from scaling.catalogue.load import load_cards, parse_card, read_card
from scaling.errors import UserError

MINIMAL = {
    "name": "mine",
    "vendor": "NVIDIA",
    "nvml_names": ["NVIDIA Mine"],
    "pci_device_ids": ["ABCD"],
    "memory_gb": 16,
    "peak_tflops": {"fp32": 10},
    "source": "data sheet",
}


def write(folder: Path, **changes: object) -> Path:
    content = MINIMAL | changes
    folder.mkdir(exist_ok=True)
    file = folder / f"{content['name']}.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return file


def test_a_folder_that_does_not_exist_adds_nothing(tmp_path: Path) -> None:
    assert load_cards(tmp_path / "hardware") == load_cards()


def test_a_card_of_the_users_own_is_added_from_one_file(tmp_path: Path) -> None:
    write(tmp_path)
    cards = load_cards(tmp_path)
    assert len(cards) == len(load_cards()) + 1
    assert cards["mine"].peak_tflops.fp32 == 10
    assert cards["mine"].peak_tflops.bf16 is None
    assert cards["mine"].price is None


def test_a_file_of_the_same_name_replaces_the_shipped_card(tmp_path: Path) -> None:
    shipped = yaml.safe_load((paths.conf() / "hardware" / "h100_sxm_80g.yaml").read_text(encoding="utf-8"))
    write(tmp_path, **(shipped | {"source": "measured here", "peak_tflops": {"bf16": 900}}))
    assert load_cards(tmp_path)["h100_sxm_80g"].source == "measured here"
    assert len(load_cards(tmp_path)) == len(load_cards())


@pytest.mark.parametrize("changes", [{"pci_device_ids": ["2330"], "memory_gb": 80}, {"nvml_names": ["NVIDIA H100 80GB HBM3"], "memory_gb": 76}])
def test_two_files_that_claim_one_card_are_both_named(tmp_path: Path, changes: dict[str, object]) -> None:
    mine = write(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        load_cards(tmp_path)
    assert str(mine) in str(caught.value)
    assert str(paths.conf() / "hardware" / "h100_sxm_80g.yaml") in str(caught.value)


def test_pci_ids_collide_whatever_their_case(tmp_path: Path) -> None:
    write(tmp_path, pci_device_ids=["2b85"], memory_gb=32)
    with pytest.raises(UserError, match=r"rtx5090\.yaml.*'2B85'"):
        load_cards(tmp_path)


def test_the_same_name_with_another_memory_size_is_another_card(tmp_path: Path) -> None:
    write(tmp_path, nvml_names=["NVIDIA GeForce RTX 3080"], pci_device_ids=["220A"], memory_gb=12)
    assert load_cards(tmp_path)["mine"].memory_gb == 12


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"memory_gbs": 3}, "unknown key memory_gbs; did you mean memory_gb?"),
        ({"peak_tflops": {"bf61": 3}}, "unknown key peak_tflops.bf61; did you mean bf16?"),
        ({"peak_tflops": {"int4": 3}}, "unknown key peak_tflops.int4; allowed are fp32, tf32, fp16, bf16, fp8, fp64"),
        ({"peak_tflops": {"fp32": -1}}, "peak_tflops.fp32: -1: input should be greater than 0"),
        ({"memory_gb": float("nan")}, "memory_gb: nan: input should be a finite number"),
        ({"memory_gb": "16"}, "memory_gb: '16': input should be a valid number"),
        ({"memory_gb": None}, "memory_gb: None: input should be a valid number"),
        ({"pci_device_ids": [2330]}, 'pci_device_ids.0: 2330 must be text; put it in quotes ("2330")'),
        ({"pci_device_ids": ["0x2330"]}, "pci_device_ids.0: '0x2330'"),
        ({"source": ""}, "source: ''"),
    ],
)
def test_wrong_keys_and_values_are_named_with_their_file(tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    file = write(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        read_card(file)
    assert str(caught.value).startswith(f"{file}: {complaint}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["vendor", "nvml_names", "pci_device_ids", "memory_gb", "peak_tflops", "source"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(UserError, match=f"here: the key {key} is missing"):
        parse_card({name: value for name, value in MINIMAL.items() if name != key}, "here")


@pytest.mark.parametrize("text", ["", "- a list\n", "name: [unclosed\n", "a: b: c\n"])
def test_a_file_that_is_no_mapping_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.yaml") as caught:
        read_card(file)
    assert "\n" not in str(caught.value)


def test_a_name_other_than_the_files_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path).rename(tmp_path / "other.yaml")
    with pytest.raises(UserError, match="name is 'mine'; allowed is the file's own name, 'other'"):
        read_card(file)


def test_an_unquoted_date_is_read_as_its_text() -> None:
    price = yaml.safe_load("{currency: USD, low: 100, kind: used, date: 2026-05-01, source: shop}")
    assert parse_card(MINIMAL | {"price": price}, "here").price.date == "2026-05-01"


def test_interconnects_are_named_after_their_files() -> None:
    for file in (paths.conf() / "interconnect").glob("*.yaml"):
        assert yaml.safe_load(file.read_text(encoding="utf-8"))["name"] == file.stem
    assert {"nvlink", "pcie"} <= {file.stem for file in (paths.conf() / "interconnect").glob("*.yaml")}
