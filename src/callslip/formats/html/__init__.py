"""`html`: a session as one file that loads nothing. Only the page's own script runs; everything else is text."""
