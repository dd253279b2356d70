"""Other libraries' files: tables of names and the readers and writers around them."""
