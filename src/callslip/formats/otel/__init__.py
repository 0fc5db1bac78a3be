"""`otel`: the calls of a session as spans of OpenTelemetry.

The names `gen_ai.*` are those of its semantic conventions, where they are still in development.
"""
