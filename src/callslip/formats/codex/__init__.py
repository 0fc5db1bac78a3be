"""The rollouts of Codex: the files in which it stores its sessions."""
