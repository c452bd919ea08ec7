"""Who starts the ranks: one file each. Imports of ``scaling`` are limited to ``worker``, ``records`` and ``errors``."""
