"""Everything that is provisioned in a kernel and accessed there: work directory, uploads, commands, output."""
