"""The paper's reproduction: its tables and figures declared in TOML, run as grids, shown beside its numbers."""
