"""The nodes of a lab: network-namespace nodes with an agent, and kwok nodes."""
