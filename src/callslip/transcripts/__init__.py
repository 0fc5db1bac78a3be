"""Read the histories that agents write on this machine into sessions."""
