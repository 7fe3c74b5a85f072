"""What the scripts share, and what writes the files of the app."""
