"""What is kept around an incident, and its exact replay; nothing of it is loaded by a lens that keeps nothing."""
