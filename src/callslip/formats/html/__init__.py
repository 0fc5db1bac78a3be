"""`html`: a session as one page that needs nothing else. It runs no script, and what a tool printed is only text."""
