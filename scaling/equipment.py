"""Whether a request is measured or predicted, and for which cards, links and machines it is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeVar

from scaling.catalogue.card import Card
from scaling.catalogue.link import Interconnect, Network
from scaling.catalogue.load import load_cards, load_interconnects, parse_card
from scaling.catalogue.parse import parse
from scaling.catalogue.pricing import GeneralPricing
from scaling.catalogue.recognise import how_to_add
from scaling.config import RunConfig
from scaling.errors import NotHere, UserError
from scaling.points import Machine, cards_per_absent_node, device_of, resolve, resolve_absent
from scaling.spec import RunSpec

ASSUMED_CARD = "h100_sxm_80g"
Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is done with a request.

    Attributes:
        spec: Of the curve.
        equipment: What it is predicted for; ``None`` where it is only measured.
        measured: Whether it is measured.
        reason: Why it is not, where the user did not choose.
    """

    spec: RunSpec
    equipment: Equipment | None
    measured: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """What a prediction is for.

    Attributes:
        card: All cards are of this kind.
        cards: The catalogue, for constants that the card takes from siblings.
        pricing: What holds for every card.
        interconnect: Inside a machine; ``None`` where a machine holds one card.
        network: Between machines.
        cards_per_node: Of one machine.
        assumed: What nobody named, in words.
    """

    card: Card
    cards: Mapping[str, Card]
    pricing: GeneralPricing
    interconnect: Interconnect | None
    network: Network | None
    cards_per_node: int
    assumed: tuple[str, ...] = ()

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The device that the cards are."""
        return "cpu" if self.card.is_process else "cuda"

    def __str__(self) -> str:
        links = [link.name for link in (self.interconnect, self.network) if link]
        return " over ".join([self.card.name, " and ".join(links)]) if links else self.card.name


def names_what_is_absent(config: RunConfig, machine: Machine) -> bool:
    """Tell whether a request can only be predicted, because of what it names and this machine has not."""
    if config.source != "auto":
        return config.source == "predict"
    try:
        device_of(config, machine)
    except NotHere:
        return True
    return _names_a_process(config)


def choose(config: RunConfig, machine: Machine, run_id: str, others: Sequence[Machine] = ()) -> Choice:
    """Decide whether a curve is measured or predicted, all its points alike.

    ``source=auto`` measures what this machine and the other nodes have, and predicts what they have not.

    Raises:
        UserError: The request cannot be served either way.
    """
    if config.source == "predict" or (config.source == "auto" and _names_a_process(config)):
        return _predicted(config, machine, run_id, "")
    try:
        spec = resolve(_without_process(config), machine, run_id, others)
    except NotHere as refusal:
        if config.source != "auto":
            raise
        return _predicted(config, machine, run_id, refusal.reason)
    per_node = spec.gpus_per_node or spec.world_size
    return Choice(spec=spec, equipment=equipment_of(config, (machine, *others), per_node) if config.source == "both" else None, measured=True)


def _predicted(config: RunConfig, machine: Machine, run_id: str, reason: str) -> Choice:
    equipment = equipment_of(config, (machine,), cards_per_absent_node(config))
    spec = resolve_absent(config, equipment.device, run_id)
    _check_machines(spec, equipment)
    if equipment.network is not None and max(point.nodes for point in spec.points) == 1:
        unused = f"network={equipment.network.name} plays no part: all cards lie in one machine of gpus_per_node={equipment.cards_per_node}"
        equipment = replace(equipment, assumed=(*equipment.assumed, unused))
    return Choice(spec=spec, equipment=equipment, measured=False, reason=reason)


def equipment_of(config: RunConfig, machines: Sequence[Machine], per_node: int) -> Equipment:
    """Return what a request is predicted for: what it names, else what is here, else an assumption that is said.

    Args:
        config: The request.
        machines: This machine, and the other nodes where they measure too.
        per_node: Cards of each machine.

    Raises:
        UserError: A card, link or network is not valid, cards and link do not fit, or what is here is no card to predict.
    """
    cards = load_cards(Path("hardware"))
    machine = machines[0]
    assumed: list[str] = []
    if config.hardware is not None:
        card = parse_card(config.hardware, f"hardware={config.hardware.get('name')}")
    elif config.device == "cpu" or (config.source == "both" and not machine.gpus):
        raise UserError(
            "a CPU process is predicted from rates that you put in: add hardware=cpu hardware.peak_tflops.fp32=... hardware.memory_bandwidth_gbs=..."
        )
    elif machine.gpus:
        card = _card_here(cards, machines, per_node)
    else:
        card = cards[ASSUMED_CARD]
        assumed.append(f"hardware={ASSUMED_CARD} is assumed")
    interconnect = _parsed(Interconnect, config.interconnect, "interconnect")
    if interconnect is None:
        here = machine.interconnect if machine.gpus and config.hardware is None else None
        usual = "gloo" if card.is_process else card.link.kind if card.link else "pcie"
        interconnect = load_interconnects(Path("interconnect"))[here or usual]
        if here is None:
            assumed.append(f"interconnect={interconnect.name} is assumed")
    network = _parsed(Network, config.network, "network")
    pricing = parse(GeneralPricing, config.pricing, f"pricing={config.pricing.get('name')}")
    return Equipment(card=card, cards=cards, pricing=pricing, interconnect=interconnect, network=network, cards_per_node=per_node, assumed=tuple(assumed))


def _card_here(cards: Mapping[str, Card], machines: Sequence[Machine], per_node: int) -> Card:
    """Return the kind of the cards that are here, which must be one and known: another one in its place would look like a prediction of these."""
    found = dict.fromkeys(pair for one in machines for pair in zip_longest(one.gpus[:per_node], one.hardware[:per_node]))
    unknown = [gpu for gpu, name in found if name not in cards]
    if unknown:
        raise UserError(f"the catalogue has no card {unknown[0]!r} to predict: name another with hardware=h100_sxm_80g, or {how_to_add(unknown[0])}")
    names = list(dict.fromkeys(name for _, name in found if name is not None))
    if len(names) > 1:
        raise UserError(
            f"the cards here are {' and '.join(names)}, and a prediction is for cards of one kind: add hardware={names[0]}, or let CUDA see one kind alone "
            "(CUDA_VISIBLE_DEVICES)"
        )
    return cards[names[0]]


def _parsed(record: type[Record], content: Mapping[str, Any] | None, group: str) -> Record | None:
    return None if content is None else parse(record, content, f"{group}={content.get('name')}")


def _without_process(config: RunConfig) -> RunConfig:
    """Return a request to measure: rates of a process put in by hand, and a link as measured, are for the prediction beside it."""
    hardware = None if _names_a_process(config) else config.hardware
    measured = config.interconnect is not None and config.interconnect.get("kind") == "measured"
    return replace(config, hardware=hardware, interconnect=None if measured else config.interconnect)


def _names_a_process(config: RunConfig) -> bool:
    return config.hardware is not None and config.hardware.get("form") == "process"


def _check_machines(spec: RunSpec, equipment: Equipment) -> None:
    """Refuse more cards than a machine holds where nothing joins machines."""
    most, cards = spec.world_size, equipment.cards_per_node
    if most > cards and equipment.network is None:
        raise UserError(
            f"gpus={most} fill {-(-most // cards)} machines of gpus_per_node={cards}, and no network joins them: add network=ib_ndr or another of "
            f"conf/network, or gpus_per_node={most} for one machine"
        )
