"""The same training elsewhere: plain PyTorch, Flower's simulation, Apple's pfl; each in a separate process."""
