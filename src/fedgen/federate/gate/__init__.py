"""The gate: what stands between the sites and SuperLink."""
