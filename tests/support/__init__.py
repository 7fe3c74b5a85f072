"""What tests share: tiny checkpoints, fakes, stand-ins."""
