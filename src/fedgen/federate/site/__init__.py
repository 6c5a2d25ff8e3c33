"""A site of a federation: its data, its training and its SuperNode process."""
