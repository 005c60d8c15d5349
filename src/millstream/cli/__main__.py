"""`python -m millstream.cli` is `python -m millstream`."""

from millstream_command import main

if __name__ == "__main__":
    main()
