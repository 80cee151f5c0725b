"""``python -m rl_doctor`` is ``rl-doctor``."""

from rl_doctor.cli.main import main

if __name__ == "__main__":
    main()
