"""What maintains the project: lock, references, pictures, benchmark."""
