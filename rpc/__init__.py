"""Code that manager, agent and client share. Imports none of them."""
