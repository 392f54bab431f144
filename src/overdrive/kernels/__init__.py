"""Operations that are written in C or Triton, each beside what calls it; compiled where they run."""
