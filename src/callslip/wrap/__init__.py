"""`callslip wrap`: run an agent for its client, pass every byte between them unchanged, and record the messages.

There are two processes. The front only moves bytes: it starts the agent, copies both directions and sends each chunk to
the recorder as a frame. The recorder finds lines and conversations in them and writes the ledger. So decoding and the
disk do not delay the agent, and the recorder ends the open calls if the front is killed. An MCP server is wrapped in
the same way, without permission requests.

    launch.py             starts the agent, the recorder and the proxy
    proxy.py              the front: the agent, its signals and the two directions; io.py reads and writes them
    permission_filter.py  takes permission requests out of the agent's output; policy.py has the rules that answer them
    held_requests.py      requests that wait for an answer in the ledger, in the front
    recorder_pipe.py      the front's connection to the recorder; frames.py has the frames in both directions
    recorder.py           the process that writes the ledger; session_names.py names its sessions
    approval_watch.py     requests that wait for an answer in the ledger, in the recorder
"""
