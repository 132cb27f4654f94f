"""A long run of impatient clients beside random kills, checked by what is left and by what the logs say."""
