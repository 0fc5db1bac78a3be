"""What programs and all edges call: the ledger, its sessions and calls, and the operations on them."""
