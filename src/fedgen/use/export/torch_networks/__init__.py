"""The built-in networks in PyTorch, as exported: each file is written out whole, and needs PyTorch alone."""
