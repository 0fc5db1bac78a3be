"""`mcp`: the messages between a client and a server in the Model Context Protocol, up to version 2026-07-28.

The decoder reads raw JSON instead of a library's models. One `tools/call` is one call with all that follows: result,
error, progress, cancellation, task, questions in between. All other messages are stored as `raw`: pings, lists,
resources, prompts, log messages and requests of the server. Only a poll that reports no change of its task creates no
event. There are no turns: a call ends with its answer or with the connection.

    wire.py     JSON-RPC: kind and sender of each message, and the request that it answers
    calls.py    the calls of one connection
    tasks.py    calls that the server answers later
    results.py  results and errors
    decode.py   the table of messages
"""
