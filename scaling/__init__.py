"""Distributed multi-GPU scaling profiler: what N cards deliver against the sum of the single cards, and why."""

import logging
from importlib import metadata

try:
    __version__ = metadata.version("scaling-profiler")
except metadata.PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"

logging.getLogger(__name__).addHandler(logging.NullHandler())
