"""Sweeps: settings chosen on held-out samples, and the chosen ones tested with other seeds (`fedgen sweep`)."""
