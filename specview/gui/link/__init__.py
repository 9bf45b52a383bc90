"""Between the window and what works elsewhere: the engine thread, short-lived threads, jobs."""
