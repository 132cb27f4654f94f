"""Probes of attempts with a published port: what is asked, when, and what the answers say of an attempt."""
