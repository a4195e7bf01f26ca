"""From a call of an op to the candidate that runs."""
