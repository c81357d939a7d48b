"""How a run is described, stored and resumed."""
