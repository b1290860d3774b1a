"""What is under test, in this process, in another one, and behind an address."""
