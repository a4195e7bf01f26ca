"""What ops, candidates and the tuner share."""
