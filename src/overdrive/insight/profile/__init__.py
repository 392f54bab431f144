"""`overdrive profile`, the parent's side: measures a program in trials and says where its time goes."""
