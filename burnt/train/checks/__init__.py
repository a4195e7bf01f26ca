"""What is tried before step 1: a dry run, shapes and values of targets, learning rate and batch size."""
