"""Commands on this machine's contexts, its browser, and the program itself."""
