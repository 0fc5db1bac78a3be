"""A small agent at work, to be watched: scripted, without a model, but the commands it runs are real."""
