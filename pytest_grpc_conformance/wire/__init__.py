"""A client that speaks HTTP/2 frames: it can send what a stock client never sends, and hides nothing that it gets."""
