"""The subcommands, thin on top of the other rooms."""
