"""Tables in, numbers out."""
