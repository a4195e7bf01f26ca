"""Parts that the screens share.

app_protocol  the app as screens know it
keymap        every key, in one table
keybar        the bar of keys
status_line   the line of facts
theme         colours and styles
table         tables
dialogs       questions and texts over a screen
filter_input, filter_match   the filter field, and what it matches
"""
