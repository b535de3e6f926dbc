"""The version of zerotrace, alone: also the ranks of a capture need it, and nothing else of the package."""

VERSION = "0.1.0"
