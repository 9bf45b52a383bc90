"""The race shown to a room, full screen: big tokens, one number a lane, keys to play and step, a playlist of runs."""
