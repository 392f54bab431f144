"""What an item of the data costs, part by part, found out in a forked copy."""
