"""Who may ask: tokens, sessions, and limits on failed sign-ins."""
