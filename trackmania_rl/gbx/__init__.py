"""Reading the game's files through pygbx."""
