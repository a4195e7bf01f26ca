"""What ends or steers a run: commands, signals, early stopping, plateaus, losses that are not finite."""
