"""How the work is spread over the cards: one file for each strategy, each with ``apply(workload, mesh)``."""
