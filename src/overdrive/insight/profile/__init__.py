"""The parent's side of `overdrive profile`: measures a program in trials and says where its time goes."""
