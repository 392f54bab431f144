"""Known transforms, done on whole batches with the numbers that the program would draw image by image."""
