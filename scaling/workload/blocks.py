"""The repeated blocks of a model: what recomputation, sharding and pipeline stages cut along."""

from __future__ import annotations

from torch import nn


def repeated_blocks(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Find the layers that a model repeats, such as the transformer blocks of a language model.

    They are the longest run of children of one class inside one ``nn.ModuleList`` or ``nn.Sequential``; children without
    parameters (activations between the layers of a perceptron) neither count nor end a run. Of two runs of the same
    length the one nearer to the root wins, so that a block's inner lists are never taken for the blocks.

    Args:
        module: The model.

    Returns:
        Qualified name and module of each block, in the order in which they run; empty where nothing repeats.
    """
    runs: list[tuple[int, list[tuple[str, nn.Module]]]] = []
    for name, container in module.named_modules():
        if isinstance(container, nn.ModuleList | nn.Sequential):
            prefix = f"{name}." if name else ""
            children = [(prefix + key, child) for key, child in container.named_children() if next(child.parameters(), None) is not None]
            runs.append((prefix.count("."), _longest_run(children)))
    runs.sort(key=lambda entry: (-len(entry[1]), entry[0]))
    return runs[0][1] if runs and len(runs[0][1]) > 1 else []


def _longest_run(children: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Return the longest stretch of neighbours of the same class."""
    longest: list[tuple[str, nn.Module]] = []
    run: list[tuple[str, nn.Module]] = []
    for name, child in children:
        run = [*run, (name, child)] if run and type(run[-1][1]) is type(child) else [(name, child)]
        longest = max(longest, run, key=len)
    return longest
