"""Exit statuses of `narwhal-serve` (configuration.md section 3), apart so that they load in no time."""

CLEAN, CRASHED, WRONG_USE, WRONG_STATE = 0, 1, 2, 3
