"""Widgets and helpers that the screens share.

app_protocol  the part of the app's interface that screens may use
keymap        all keys, in one table per screen
keybar        the bar of available keys
status_line   lines of facts that fit the width
theme         themes, colours of states, progress bars
table         the table widget
dialogs       modal screens: help, confirmation, input, end of a training
filter_input  the filter input; filter_match parses its text
"""
