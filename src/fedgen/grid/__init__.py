"""A grid of runs: each cell one configuration, computed once, in one program with others of its shape, and kept."""
