"""Names that users and other programs see: labels, annotations, leases, field managers. Pure, and imports nothing."""
