"""Standard data sets, read from the files that their authors publish; `download` gets them if asked to."""
