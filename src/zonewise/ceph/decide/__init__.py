"""Pool choice, takeover, ids, parameters and errors of the CSI driver. Pure."""
