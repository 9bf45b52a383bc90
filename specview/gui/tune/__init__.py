"""The Tune dialog."""
