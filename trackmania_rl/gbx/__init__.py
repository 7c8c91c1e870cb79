"""Reading the game's own files through pygbx."""
