"""``python -m zerotrace`` is ``zerotrace``."""

from zerotrace.cli import main

if __name__ == "__main__":
    main()
