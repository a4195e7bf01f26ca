"""Files and dataframes as data sets."""
