"""Facts about cards, read from ``conf/hardware/*.yaml``: what a card is, how it is recognised, and what it could do at most."""
