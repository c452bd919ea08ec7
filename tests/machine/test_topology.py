from pathlib import Path

import pytest

from scaling.errors import UserError
from scaling.machine.topology import interconnect, parse_topology

SAMPLES = Path(__file__).parent / "topo"


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "cards", "weakest", "joined_by"),
    [
        ("a100_dgx_8x_10nic_tabs", 8, "NV12", "nvlink"),
        ("a100_pcie_4x_two_nvlink_pairs", 4, "SYS", "pcie"),
        ("a40_8x_nv4_pairs_truncated", 8, "SYS", "pcie"),
        ("h100_hgx_8x_8nic", 8, "NV18", "nvlink"),
        ("merged_columns_synthetic", 2, "NV18", "nvlink"),
        ("pcie_4x_pxb_pix_sys_tabs", 4, "SYS", "pcie"),
        ("rtx3090_2x_nvlink", 2, "NV4", "nvlink"),
        ("rtx3090_2x_sys_tabs_empty_numa", 2, "SYS", "pcie"),
        ("rtx4090_5x_mixed", 5, "SYS", "pcie"),
        ("rtxpro4500_4x_phb_node", 4, "NODE", "pcie"),
        ("v100_8x_cube_mesh_ragged_tabs", 8, "SYS", "nvlink"),
    ],
)
def test_samples_give_cards_weakest_path_and_interconnect(name: str, cards: int, weakest: str, joined_by: str) -> None:
    topology = parse_topology(sample(name))
    assert topology.cards == tuple(range(cards))
    assert topology.weakest(topology.cards) == weakest
    assert topology.interconnect(topology.cards) == joined_by


def test_a_subset_of_cards_is_judged_by_its_own_paths() -> None:
    topology = parse_topology(sample("a100_pcie_4x_two_nvlink_pairs"))
    assert topology.between(0, 1) == "NV12"
    assert topology.interconnect((0, 1)) == "nvlink"
    assert topology.interconnect((1, 2)) == "pcie"
    mixed = parse_topology(sample("rtx4090_5x_mixed"))
    assert mixed.weakest((1, 2)) == "PHB"
    assert mixed.weakest((1, 2, 3)) == "NODE"


def test_one_card_has_no_interconnect() -> None:
    topology = parse_topology(sample("rtx3090_2x_nvlink"))
    assert topology.weakest((0,)) is None
    assert topology.interconnect((0,)) is None


def test_more_nvlinks_are_stronger_and_any_nvlink_beats_pcie() -> None:
    mesh = parse_topology(sample("v100_8x_cube_mesh_ragged_tabs"))
    assert {mesh.between(0, 1), mesh.between(0, 2)} == {"NV1", "NV2"}
    assert mesh.weakest((0, 1, 2)) == "NV1"
    pix = parse_topology("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tNV1\nGPU1\tPIX\tX\tNV10\nGPU2\tNV1\tNV10\tX\n")
    assert pix.weakest((0, 1, 2)) == "PIX"
    assert pix.weakest((1, 2)) == "NV10"
    assert pix.interconnect((0, 1, 2)) == "nvlink"


def test_underlining_of_the_header_does_not_hide_the_first_card() -> None:
    text = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\x1b[0m\nGPU0\t X \tPHB\t0-11\tN/A\nGPU1\tPHB\t X \t0-11\tN/A\n"
    assert parse_topology(text).weakest((0, 1)) == "PHB"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not the output"),
        (sample("amd_8x_xgmi_type_only"), "not the output"),
        (sample("rtx3090_2x_nvlink_p2p"), "row of GPU0 has 1 readable paths"),
        ("\tGPU0\tGPU1\nGPU0\tX\tPIX\n", "row of GPU1 has 0"),
        ("\tGPU0\tGPU1\nGPU0\tX\tPIX\nGPU1\tSYS\tX\n", "GPU0 to GPU1 is 'PIX'"),
        ("\tGPU0\tGPU1\nGPU0\tPIX\tX\nGPU1\tX\tPIX\n", "GPU0 to GPU0 is 'PIX'"),
    ],
)
def test_what_is_no_whole_matrix_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        parse_topology(text)


def test_a_chain_of_nvlinks_is_nvlink_and_one_card_outside_makes_it_pcie() -> None:
    assert interconnect((0, 1, 2, 3), [(0, 1), (2, 1), (2, 3)]) == "nvlink"
    assert interconnect((0, 1, 2, 3), [(0, 1), (2, 1)]) == "pcie"
    assert interconnect((0, 1), []) == "pcie"
