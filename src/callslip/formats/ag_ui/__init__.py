"""`ag-ui`: the events of the Agent User Interaction Protocol 1.0, and the inputs that start its runs.

What is read is raw JSON, never a library's models of it: those refuse what they do not know.
"""
