"""Measurements of the simulator beside its peers, on one machine and in one run."""
