"""A scripted demo agent. It uses no model, but the commands that it runs are real."""
