"""Setting a federation up: folders, keys, certificates, scripts and processes."""
