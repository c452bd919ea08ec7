"""How it is measured: blocks, rounds and the programs of each rung, on the ranks' side and on the driver's."""
