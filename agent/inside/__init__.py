"""What is provisioned in a kernel and reached in it: work directory, uploads, commands, output."""
