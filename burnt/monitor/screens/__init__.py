"""The screens of the monitor: the list of runs, one run and its panes, several runs compared."""
