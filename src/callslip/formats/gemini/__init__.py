"""The chat files of Gemini CLI, in which it stores its sessions."""
