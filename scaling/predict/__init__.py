"""Seconds of what is not here: operators and collectives of a step, priced on any card and link of the catalogue, each with its spread."""
