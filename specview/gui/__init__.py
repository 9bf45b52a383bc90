"""The window: Qt only, one more client of the core."""
