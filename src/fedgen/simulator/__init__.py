"""Running federations on one machine."""
