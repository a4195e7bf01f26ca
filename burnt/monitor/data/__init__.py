"""Reading runs while they grow, and sending commands to them. Nothing here imports Textual."""
