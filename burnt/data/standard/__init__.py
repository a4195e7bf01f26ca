"""Standard data sets, read from the files that their authors publish.

`mnist`, `cifar` and `ag_news` read them; `download` gets them, if that is asked for; `array_pickle` reads
arrays out of pickles without running these.
"""
