"""The `zonewise` command: one module per subcommand, each loaded only when it runs."""
