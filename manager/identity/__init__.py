"""Who is who: the certificate authority, secrets, and principals."""
