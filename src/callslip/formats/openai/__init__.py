"""`openai` and `responses`: the two APIs of OpenAI, and of everybody who speaks like them.

Read are streams, whole responses, requests and single messages; written are histories that the API accepts.
"""
