"""What a training shows: lines or a live view, a final summary, tables, samples of the machine."""
