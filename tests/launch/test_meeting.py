"""How drivers find each other: in order, in time, and without strangers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from launch.line import Line, LineClosed
from launch.meeting import Arrival, join, receive_nodes
from scaling.errors import UserError

LOOPBACK = "127.0.0.1"
FIRST = {"host": "a", "node_rank": None}


def fits(mine: Any, theirs: Any) -> None:
    """Every node fits."""


@pytest.fixture
def port() -> int:
    with socket.create_server((LOOPBACK, 0)) as free:
        number: int = free.getsockname()[1]
    return number


def joining(pool: ThreadPoolExecutor, port: int, host: str, node_rank: int | None = None) -> Future[tuple[Line, int]]:
    return pool.submit(join, LOOPBACK, port, 10.0, {"host": host, "node_rank": node_rank})


def close(arrivals: list[Arrival], *futures: Future[tuple[Line, int]]) -> None:
    for line in (*(arrival.line for arrival in arrivals), *(future.result()[0] for future in futures)):
        line.close()


def test_nodes_are_numbered_by_their_rank_and_else_by_host_name_in_whatever_order_they_come(port: int) -> None:
    with ThreadPoolExecutor(3) as pool:
        futures = {host: joining(pool, port, host, rank) for host, rank in (("d", None), ("c", None), ("b", 3))}
        arrivals = receive_nodes(LOOPBACK, port, 4, 10, FIRST, fits)
        assert [arrival.facts["host"] for arrival in arrivals] == ["c", "d", "b"]
        assert {host: future.result()[1] for host, future in futures.items()} == {"c": 1, "d": 2, "b": 3}
        close(arrivals, *futures.values())


def test_missing_nodes_are_named_by_host_where_somebody_knows_the_hosts(port: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = joining(pool, port, "b", 1)
        begin = time.monotonic()
        with pytest.raises(UserError, match=r"nodes=3: within 1 s only a, b came, missing: c; ") as refusal:
            receive_nodes(LOOPBACK, port, 3, 1, FIRST, fits, expected=("a", "b", "c"))
        assert time.monotonic() - begin < 3
        assert str(future.exception()) == str(refusal.value)  # who came is told the same


def test_missing_nodes_are_named_by_number_where_the_others_gave_theirs(port: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = joining(pool, port, "b", 2)
        with pytest.raises(UserError, match=r"only a, b came, missing: node 1; "):
            receive_nodes(LOOPBACK, port, 3, 1, FIRST, fits)
        assert isinstance(future.exception(), UserError)


def test_a_node_that_does_not_fit_is_refused_at_once_and_so_are_those_before_it(port: int) -> None:
    def judge(mine: Any, theirs: Any) -> str | None:
        return "c is odd" if theirs["host"] == "c" else None

    with ThreadPoolExecutor(2) as pool:
        first = joining(pool, port, "b")
        threading.Timer(0.5, lambda: futures.append(joining(pool, port, "c"))).start()
        futures = [first]
        with pytest.raises(UserError, match="c is odd"):
            receive_nodes(LOOPBACK, port, 4, 30, FIRST, judge)
        assert [str(future.exception()) for future in futures] == ["c is odd"] * 2


def test_two_nodes_with_one_number_are_refused(port: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        future = joining(pool, port, "b", 0)
        with pytest.raises(UserError, match=r"launcher.node_rank=0 on both a and b"):
            receive_nodes(LOOPBACK, port, 2, 10, FIRST, fits)
        assert isinstance(future.exception(), UserError)


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\r\n\r\n", b'{"hello": "somebody"}\n', b""])
def test_strangers_are_sent_away_and_the_nodes_still_meet(port: int, greeting: bytes) -> None:
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(receive_nodes, LOOPBACK, port, 2, 10.0, FIRST, fits)
        with connected(port) as stranger:
            stranger.sendall(greeting)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
        future = joining(pool, port, "b")
        close(waiting.result(), future)


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection((LOOPBACK, port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_port_in_use_is_one_line(port: int) -> None:
    with socket.create_server((LOOPBACK, port)), pytest.raises(UserError, match=rf"cannot listen on {LOOPBACK} port {port} \(Address already in use\)"):
        receive_nodes(LOOPBACK, port, 2, 10, FIRST, fits)


def test_something_else_at_the_meeting_point_is_one_line(port: int) -> None:
    with ThreadPoolExecutor(1) as pool, socket.create_server((LOOPBACK, port)) as server:
        future = joining(pool, port, "b")
        connection = server.accept()[0]
        connection.sendall(b"220 mail server ready\r\n")
        assert "ended before all nodes had come (the other end does not speak this protocol)" in str(future.exception())
        connection.close()


@pytest.fixture
def line() -> Iterator[tuple[Line, Line]]:
    with socket.create_server((LOOPBACK, 0)) as server:
        near = socket.create_connection(server.getsockname())
        far = server.accept()[0]
    ends = (Line(near), Line(far))
    yield ends
    for end in ends:
        end.close()


def test_messages_arrive_in_order_and_whole_whatever_their_size(line: tuple[Line, Line]) -> None:
    near, far = line
    messages = [{"number": number, "text": "x" * size} for number, size in enumerate((0, 1, 70_000, 1_000_000, 3))]
    sender = threading.Thread(target=lambda: [near.send(message) for message in messages])
    sender.start()
    assert [far.receive(5) for _ in messages] == messages
    sender.join()


def test_a_line_that_closes_says_so_to_who_waits_and_to_who_sends(line: tuple[Line, Line]) -> None:
    near, far = line
    threading.Timer(0.2, near.close).start()
    with pytest.raises(LineClosed, match="closed"):
        far.receive()
    with pytest.raises(LineClosed):
        for _ in range(100):
            far.send({"text": "x" * 100_000})


def test_a_wait_has_an_end(line: tuple[Line, Line]) -> None:
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        line[0].receive(0.3)
    assert 0.2 < time.monotonic() - begin < 2
