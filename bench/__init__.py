"""Side-by-side comparisons: each runs us and the peer on the same work, interleaved, and prints the ratio."""
