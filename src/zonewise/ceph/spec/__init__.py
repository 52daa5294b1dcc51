"""The Container Storage Interface: csi.proto and the messages generated from it."""
