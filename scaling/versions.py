"""What the nodes of a run must have alike: the versions of everything that decides how fast a step is."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import scaling


def versions() -> dict[str, str]:
    """Return what must be the same on all nodes; ours with a hash of its code, because checkouts share a version for months."""
    torch = _quiet_torch()
    digest = hashlib.sha256()
    package = Path(scaling.__file__).parent
    for file in sorted([*package.rglob("*.py"), *(package.parent / "launch").rglob("*.py")]):
        digest.update(str(file.relative_to(package.parent)).encode() + file.read_bytes())
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "transformers": version("transformers"),
        "scaling": f"{scaling.__version__}+{digest.hexdigest()[:8]}",
    }


def _quiet_torch() -> ModuleType:
    """Import torch, which the launcher needs too, so that its C++ part tells the console errors only.

    It warns whenever an address has no name, which is common between nodes. It reads the variable once, and ranks shall not inherit it.
    """
    asked = "TORCH_CPP_LOG_LEVEL" in os.environ
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        import torch
    finally:
        if not asked:
            del os.environ["TORCH_CPP_LOG_LEVEL"]
    return torch
