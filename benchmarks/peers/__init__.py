"""Other servers beside ours: the same weights, requests, precision and threads, one table."""
