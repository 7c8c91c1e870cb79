"""Games of any kind behind one interface (`protocol`), and Gymnasium environments on it. No torch."""
