"""The order in which the parts of a step run and when each of them ends: pure, for the bubble, a prediction or a timeline."""
