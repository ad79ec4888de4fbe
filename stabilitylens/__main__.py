"""``python -m stabilitylens`` is the command ``stabilitylens``, of the Python that it is asked of."""

from stabilitylens.cli import main

if __name__ == "__main__":
    main()
