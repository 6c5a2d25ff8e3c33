"""What a run leaves behind and what it is made from, for the simulator and a real federation alike."""
