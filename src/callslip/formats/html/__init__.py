"""`html`: a session as one file that needs nothing else. Nothing in it runs but the page itself; the rest is text."""
