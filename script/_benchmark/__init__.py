"""Speed, first audio and memory: this project beside another checkout and a peer's design."""
