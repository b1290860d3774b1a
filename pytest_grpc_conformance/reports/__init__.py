"""What a run found, as a document, and the views of that document."""
