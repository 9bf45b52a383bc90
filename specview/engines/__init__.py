"""Where forward passes happen. Each engine's library is imported when it is first used."""
