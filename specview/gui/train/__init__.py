"""The training dialog and its process."""
