"""Operations that are written in C, each beside what calls it; compiled where they run."""
