"""What the hooks of terminal agents send, and what they read as an answer."""
