"""The server of a federation: its rounds, and what it asks of the sites."""
