"""What is put inside a kernel."""
