"""One module per outside client; nothing else imports that client."""
