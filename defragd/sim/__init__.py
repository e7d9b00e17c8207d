"""A simulated cluster in memory behind the same ports as the real one: tests, the demo and simulations run on it."""
