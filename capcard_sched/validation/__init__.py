"""Checks of user input, one place for admission, `validate`, the simulator and the daemon."""
