"""The server of a federation: its rounds, its messages to the sites and the checks of their replies."""
