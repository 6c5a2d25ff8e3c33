"""The gate: a reverse proxy between the sites and SuperLink."""
