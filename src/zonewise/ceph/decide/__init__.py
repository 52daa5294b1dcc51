"""CSI decisions: pool choice, takeovers, volume ids, StorageClass parameters, gRPC errors. Pure."""
