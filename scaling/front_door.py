"""What every command line of this project does alike: compose with Hydra, refuse in one line, return the worst exit code.

Exit codes: 0 all is well, 1 something that was tried failed, 2 the request was refused, 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from types import FrameType
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from scaling import paths
from scaling.config import composition_line, group_without_choice
from scaling.errors import Interrupted, UserError

OK, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
Job = Callable[[dict[str, Any]], int]


def serve(program: str, job: Job, chosen: Callable[[list[str]], list[str]] = lambda _: []) -> int:
    """Compose the command line and do what it asks for; in a multirun every job runs.

    Args:
        program: Module of the front door and name of its root configuration: ``run`` is ``scaling/run.py`` and ``conf/run.yaml``.
        job: Serves one composed configuration, given as plain values with interpolations resolved, and returns its exit code.
            A ``UserError`` that it raises is printed as one line and counts as refused; the jobs after it still run.
        chosen: Returns the overrides that stand in for what the given arguments leave open.

    Returns:
        The worst exit code.
    """
    arguments = sys.argv[1:]
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s: %(message)s")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and the line that a user reads is ours
    codes: list[int] = []
    if line := group_without_choice(arguments):
        return _refuse(line)

    @hydra.main(config_path=str(paths.conf()), config_name=program, version_base="1.3")
    def each(composed: DictConfig) -> None:
        codes.append(_serve_one(composed, job))

    try:
        with tempfile.TemporaryDirectory() as scratch:  # a multirun writes its own summary, which nobody here asks for
            sys.argv[1:] = [*arguments, *chosen(arguments), f"hydra.sweep.dir={scratch}"]
            each()
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone (--help | head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (hydra.errors.HydraException, OmegaConfBaseException) as error:
        return _refuse(composition_line(error, arguments, program))
    except (Interrupted, KeyboardInterrupt):
        return INTERRUPTED
    return max(codes, default=OK)


def command_line(program: str) -> list[str]:
    """Return the command as it may be repeated: what was given and what was chosen for it, without Hydra's own settings."""
    return ["python", "-m", f"scaling.{program}", *(argument for argument in sys.argv[1:] if not argument.startswith("hydra."))]


def _serve_one(composed: DictConfig, job: Job) -> int:
    try:
        container = OmegaConf.to_container(composed, resolve=True)
        assert isinstance(container, dict)  # the root configurations are mappings
        return job({str(key): value for key, value in container.items()})
    except OmegaConfBaseException as error:
        return _refuse(str(error).splitlines()[0])
    except UserError as error:
        return _refuse(str(error))


def _refuse(line: str) -> int:
    print(f"refused: {line}", file=sys.stderr)
    return REFUSED


class signals:  # noqa: N801 - reads as a statement: with signals()
    """Turn SIGINT, SIGTERM and SIGHUP into ``Interrupted`` in the main thread, once; a second one kills as usual."""

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._raise) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _raise(self, number: int, _frame: FrameType | None) -> None:
        for known in self._before:
            signal.signal(known, signal.SIG_DFL)
        raise Interrupted(number)
