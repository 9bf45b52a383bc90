"""Where forward passes happen. Each engine's library is imported when it is first used.

An engine is an `Engine` of decoding/interfaces; its name stands in settings/run.ENGINES, and models/loading loads it.
"""
