"""The use of trained models: load, predict, evaluate, export."""
