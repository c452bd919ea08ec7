import socket
import threading
import time
from pathlib import Path

import pytest

from scaling.machine.preflight import compiler_problems, folder_problems, host_name_problems, interface_problems


def answer(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port, **options: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))])


def test_a_writable_folder_with_space_has_no_problems(tmp_path: Path) -> None:
    assert folder_problems(tmp_path, 1) == []


def test_a_folder_that_does_not_exist_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    assert folder_problems(tmp_path / "runs" / "deep", 1) == []
    assert not (tmp_path / "runs").exists()


def test_a_file_in_the_folders_place_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("", encoding="ascii")
    (problem,) = folder_problems(tmp_path / "runs", 1)
    assert f"cannot write to {tmp_path / 'runs'}" in problem


def test_a_folder_that_takes_no_files_is_a_problem() -> None:
    (problem,) = folder_problems(Path("/proc"), 1)
    assert "cannot write to /proc" in problem


def test_too_little_space_is_a_problem_with_both_figures(tmp_path: Path) -> None:
    (problem,) = folder_problems(tmp_path, 10**18)
    assert "a run needs 1,000,000,000,000 MB" in problem


def test_localhost_has_no_problems() -> None:
    assert host_name_problems("localhost") == []


def test_an_unknown_host_name_is_a_problem_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str, port: None, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    (problem,) = host_name_problems("node7")
    assert "'node7' is not known" in problem
    assert "/etc/hosts" in problem


def test_a_host_name_that_leads_elsewhere_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "192.0.2.1")
    (problem,) = host_name_problems("node7")
    assert "leads to 192.0.2.1" in problem


def test_a_silent_name_service_is_a_problem_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port, **options: release.wait(30) and [])
    start = time.monotonic()
    (problem,) = host_name_problems("node7", limit_seconds=0.1)
    release.set()
    assert "not resolved within 0.1 s" in problem
    assert time.monotonic() - start < 5


def test_existing_interfaces_and_none_have_no_problems() -> None:
    assert interface_problems({}) == []
    assert interface_problems({"GLOO_SOCKET_IFNAME": "lo,lo"}) == []


@pytest.mark.parametrize("name", ["^lo", "=lo", "nonexistent9"])
def test_interfaces_that_do_not_exist_are_problems_and_the_present_ones_are_listed(name: str) -> None:
    (problem,) = interface_problems({"GLOO_SOCKET_IFNAME": f"lo,{name}"})
    assert repr(name) in problem
    assert "lo" in problem.split("allowed are")[1]


def test_a_compiler_that_is_not_there_is_a_problem_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "my-compiler").write_text("#!/bin/sh\n", encoding="ascii")
    (tmp_path / "my-compiler").chmod(0o755)
    assert compiler_problems({"CXX": "my-compiler", "PATH": str(tmp_path)}) == []
    (problem,) = compiler_problems({"PATH": str(tmp_path)})
    assert "'g++' is not found" in problem
    assert "compile=false" in problem
