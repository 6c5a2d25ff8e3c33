"""A federation of processes on one machine, compared with the simulator: the only package that imports both."""
