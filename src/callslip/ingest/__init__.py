"""Messages of other programs into sessions: live streams and files."""
