"""What a run is asked for and what it tells: its settings, the options of methods, and events."""
