"""The demo application of a lab, Zonewise installed beside it, and the tour."""
