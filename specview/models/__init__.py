"""Finding, checking and loading models."""
