"""The paper's tables and figures: declared in TOML, run as grids of cells, kept beside the published numbers."""
