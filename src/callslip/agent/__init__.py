"""A small agent: a loop between a model and its tools. This package imports nothing by itself."""
