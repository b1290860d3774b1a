"""What is under test: a server library in this process, a command that we start, or an address."""
