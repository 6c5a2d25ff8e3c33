"""A real federation on Flower: the same algorithm files as the simulator, across processes and machines."""
