"""What is done with a trained model: load, evaluate, predict."""
