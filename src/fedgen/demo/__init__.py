"""A federation of processes on one machine, beside the simulator: the one place that knows both."""
