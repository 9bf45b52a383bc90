"""What the window shows, in plain Python: no Qt."""
