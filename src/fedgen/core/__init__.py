"""The contract every algorithm fulfils, and the few loops and helpers all of them share."""
