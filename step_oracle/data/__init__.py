"""Data files of the package: plan rows, card list."""
