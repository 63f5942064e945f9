"""What `inferc inspect` shows."""
