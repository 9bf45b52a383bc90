"""What a run is asked for and what it tells: options and events."""
