"""Addresses, names and interfaces of this host."""

from __future__ import annotations

import time

import pytest

from scaling.machine.network import Endpoint, addresses, endpoint, interface_of, interfaces, is_local


@pytest.mark.parametrize(
    ("text", "expected"),
    [("node1:29400", Endpoint("node1", 29400)), ("10.0.0.1:80", Endpoint("10.0.0.1", 80)), ("[fd00::2]:29400", Endpoint("fd00::2", 29400))],
)
def test_a_meeting_point_is_a_host_and_a_port(text: str, expected: Endpoint) -> None:
    assert endpoint(text) == expected


@pytest.mark.parametrize("text", ["node1", "node1:", ":29400", "node1:http", "node1:0", "node1:65536", ""])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        endpoint(text)


def test_the_loopback_address_is_local_and_lies_on_the_loopback_interface() -> None:
    assert is_local("127.0.0.1")
    assert interface_of("127.0.0.1") == interface_of("127.0.0.5") == "lo"


def test_an_address_kept_for_documentation_is_not_of_this_host() -> None:
    assert not is_local("198.51.100.7")
    assert interface_of("198.51.100.7") == ""


def test_every_address_of_an_interface_can_be_bound_to() -> None:
    own = [address for address in interfaces() if not address.startswith("fe80")]  # link-local ones need their interface named
    assert own
    assert all(is_local(address) for address in own)


def test_a_name_leads_to_its_addresses_and_an_unknown_one_fails_in_time() -> None:
    assert "127.0.0.1" in addresses("localhost")
    begin = time.monotonic()
    with pytest.raises(OSError):
        addresses("nobody.invalid", limit_seconds=2)
    assert time.monotonic() - begin < 5
