"""How experience is stored and sampled."""
