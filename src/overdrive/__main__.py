"""`python -m overdrive` is `overdrive`."""

from overdrive.cli import main

if __name__ == "__main__":
    main()
