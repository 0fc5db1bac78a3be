"""`ag-ui`: the events of the Agent User Interaction Protocol 1.0, and the inputs that start its runs.

The decoder reads raw JSON instead of a library's models, which reject unknown values.
"""
